#include "kit.h"

#include "load.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>

#include <fcntl.h>
#include <openssl/sha.h>
#include <sys/epoll.h>
#include <unistd.h>

namespace chaos {

double
now()
{
    timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return static_cast<double>(ts.tv_sec)
           + static_cast<double>(ts.tv_nsec) / 1e9;
}


std::string
sha1_hex(std::string_view bytes)
{
    static const char digits[] = "0123456789abcdef";
    unsigned char digest[SHA_DIGEST_LENGTH];
    std::string text;

    SHA1(reinterpret_cast<const unsigned char *>(bytes.data()), bytes.size(),
         digest);

    for (unsigned char each : digest) {
        text += digits[each >> 4];
        text += digits[each & 15];
    }

    return text;
}


std::uint32_t
dice(const std::string &text)
{
    return static_cast<std::uint32_t>(
        std::stoul(sha1_hex(text).substr(0, 8), nullptr, 16));
}


void
line::set(std::string_view name, std::string_view value)
{
    if (!value.empty()) {
        fields_.insert_or_assign(std::string(name), std::string(value));
    }
}


void
line::set_time(std::string_view name, double seconds)
{
    char text[32];

    std::snprintf(text, sizeof(text), "%.4f", seconds);
    set(name, text);
}


std::string
line::text() const
{
    std::string all;

    for (auto &[name, value] : fields_) {
        all += (all.empty() ? "" : "\t") + name + "=";

        for (char each : value) {
            all += std::strchr("\t\n\r", each) ? ' ' : each;
        }
    }

    return all + "\n";
}


line_file::line_file(const std::string &path)
    : file_(
        open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666))
{
    if (file_ < 0) {
        load::fail(path + ": " + std::strerror(errno));
    }
}


void
line_file::append(const line &l)
{
    std::string text = l.text();

    if (write(file_, text.data(), text.size())
        != static_cast<ssize_t>(text.size()))
    {
        load::fail("a line could not be written");
    }
}


arguments::arguments(int count, char **words)
{
    for (int i = 1; i < count; i += 2) {
        std::string name = words[i];

        if (!name.starts_with("--") || i + 1 == count) {
            load::fail("not --name value: " + name);
        }

        by_name_.emplace(name.substr(2), words[i + 1]);
    }
}


std::string
arguments::text(const std::string &name) const
{
    auto found = by_name_.find(name);

    return found == by_name_.end() ? "" : found->second;
}


double
arguments::number(const std::string &name, double otherwise) const
{
    std::string value = text(name);
    char *end;
    double number = std::strtod(value.c_str(), &end);

    if (*end != '\0') {
        load::fail("--" + name + " is not a number: " + value);
    }

    return value.empty() ? otherwise : number;
}


loop::loop() : poll_(epoll_create1(EPOLL_CLOEXEC))
{}


void
loop::watch(int socket, std::uint32_t events, handler h)
{
    epoll_event event = {};

    watched_[socket] = {++last_number_, std::move(h)};
    event.events = events;
    event.data.u64 = static_cast<std::uint64_t>(last_number_) << 32
                     | static_cast<std::uint32_t>(socket);
    epoll_ctl(poll_, EPOLL_CTL_ADD, socket, &event);
}


void
loop::change(int socket, std::uint32_t events)
{
    epoll_event event = {};

    event.events = events;
    event.data.u64 = static_cast<std::uint64_t>(watched_.at(socket).number)
                         << 32
                     | static_cast<std::uint32_t>(socket);
    epoll_ctl(poll_, EPOLL_CTL_MOD, socket, &event);
}


void
loop::forget(int socket)
{
    epoll_ctl(poll_, EPOLL_CTL_DEL, socket, nullptr);
    watched_.erase(socket);
}


loop::timers::iterator
loop::at(double time, action a)
{
    return timers_.emplace(time, std::move(a));
}


void
loop::step(double until)
{
    epoll_event events[256];

    if (!timers_.empty()) {
        until = std::min(until, timers_.begin()->first);
    }

    double left = std::max(0.0, until - now());
    int n = epoll_wait(poll_, events, 256,
                       static_cast<int>(std::ceil(left * 1000)));

    for (int i = 0; i < n; ++i) {
        auto found = watched_.find(static_cast<int>(events[i].data.u64));

        if (found == watched_.end()
            || found->second.number != events[i].data.u64 >> 32)
        {
            continue;
        }

        /* A copy, as the handler may forget its own socket. */
        handler handle = found->second.handle;
        handle(events[i].events);
    }

    run_timers();
}


void
loop::run_timers()
{
    while (!timers_.empty() && timers_.begin()->first <= now()) {
        auto first = timers_.extract(timers_.begin());
        first.mapped()();
    }
}

}
