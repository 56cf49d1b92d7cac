#include "load_application.h"
#include "load.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>

#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

/*
 * Sends POST requests with keys and says what came back, in one line of names
 * and values.  Each connection has one request at a time.
 *
 *     load --port 8080 --requests 1000 --keys 100 --prefix abc
 *
 * --requests N     how many, as fast as they are answered
 * --rate R         or so many a second.  A request that has to wait for a free
 *                  connection waits already: its time counts from when it was
 *                  due
 * --connections C  1
 * --keys K         go round after K keys; 0: each request has its own; -1: no
 *                  key at all
 * --from N         the number of the first key
 * --path P         /pay
 * --prefix P       first part of each key, up to 8 characters
 * --body B         size of the JSON document that is sent
 * --expect E       least size of a response
 * --headers H      so many headers more
 * --http2          without TLS
 * --application PORT:SIZE   be the application that the gateway asks, too
 */

using namespace load;

namespace {

struct options {
    long port = 0;
    long requests = 1;
    long rate = 0;
    long connections = 1;
    long keys = 0;
    long from = 0;
    long body = 300;
    long expect = 0;
    long headers = 0;
    bool http2 = false;
    std::vector<std::pair<long, long>> applications; /* port, size */
    std::string prefix = "bench";
    std::string path = "/pay";
};


using nanoseconds = std::int64_t;

constexpr nanoseconds second = 1'000'000'000;


/* What an event is about: 8 bits of this, 24 of its index, 32 of a number. */
enum class kind : std::uint8_t { response, new_request, request };


/* What is under way on a connection, and what was seen in all. */
struct run {
    options how;
    std::vector<connection> connections;
    std::vector<application> applications;
    std::deque<std::size_t> idle;
    std::vector<nanoseconds> times;
    std::map<int, long> statuses;
    long sent = 0;
    long done = 0;
    long short_ones = 0;
    nanoseconds started = 0;
};


options read_options(int count, char **words);
long number(const char *text);
void add(int poll, int socket, kind what, std::uint32_t index,
         std::uint32_t number = 0);
void serve_all(run &r, int poll);
void connect_all(run &r, int poll);
nanoseconds now();
nanoseconds due_at(const run &r, long number);
void send_due(run &r);
request request_of(const options &how, long number);
std::string key_of(const options &how, long number);
std::string json_of(long size);
void wait(run &r, int poll);
int poll_awake(int poll, epoll_event *events, int limit, nanoseconds until);
void handle(run &r, int poll, std::uint64_t event);
void read_from(run &r, std::size_t index);
void report(const run &r);
double percentile(const std::vector<nanoseconds> &sorted, double share);

}


int
main(int count, char **words)
{
    run r;
    int poll = epoll_create1(0);

    r.how = read_options(count, words);
    serve_all(r, poll);
    connect_all(r, poll);
    r.times.reserve(static_cast<std::size_t>(r.how.requests));
    r.started = now();

    while (r.done < r.how.requests) {
        send_due(r);
        wait(r, poll);
    }

    report(r);

    return 0;
}


namespace {

options
read_options(int count, char **words)
{
    options o;
    std::map<std::string_view, long *> numbers = {
        {"--port", &o.port},       {"--requests", &o.requests},
        {"--rate", &o.rate},       {"--connections", &o.connections},
        {"--keys", &o.keys},       {"--from", &o.from},
        {"--body", &o.body},       {"--expect", &o.expect},
        {"--headers", &o.headers},
    };

    for (int i = 1; i < count; ++i) {
        std::string_view word = words[i];

        if (word == "--http2") {
            o.http2 = true;

        } else if (i + 1 == count) {
            fail("an option has no value: " + std::string(word));

        } else if (word == "--prefix") {
            o.prefix = words[++i];

        } else if (word == "--path") {
            o.path = words[++i];

        } else if (word == "--application") {
            std::string port = words[++i];
            std::size_t colon = port.find(':');

            if (colon == std::string::npos) {
                fail("not PORT:SIZE: " + port);
            }

            o.applications.emplace_back(
                number(port.substr(0, colon).c_str()),
                number(port.substr(colon + 1).c_str()));

        } else if (numbers.contains(word)) {
            *numbers[word] = number(words[++i]);

        } else {
            fail("no such option: " + std::string(word));
        }
    }

    return o;
}


long
number(const char *text)
{
    char *end;
    long value = std::strtol(text, &end, 10);

    if (*text == '\0' || *end != '\0') {
        fail("not a number: " + std::string(text));
    }

    return value;
}


void
add(int poll, int socket, kind what, std::uint32_t index, std::uint32_t number)
{
    epoll_event event = {};

    event.events = EPOLLIN;
    event.data.u64 = static_cast<std::uint64_t>(what) << 56
                     | static_cast<std::uint64_t>(index) << 32 | number;
    epoll_ctl(poll, EPOLL_CTL_ADD, socket, &event);
}


void
serve_all(run &r, int poll)
{
    for (auto [port, size] : r.how.applications) {
        r.applications.emplace_back(port, size);
        add(poll, r.applications.back().socket(), kind::new_request,
            static_cast<std::uint32_t>(r.applications.size() - 1));
    }
}


void
connect_all(run &r, int poll)
{
    r.connections = std::vector<connection>(
        static_cast<std::size_t>(r.how.connections));

    for (std::size_t i = 0; i < r.connections.size(); ++i) {
        if (!r.connections[i].open(r.how.port, r.how.http2)) {
            fail("connect: " + std::string(std::strerror(errno)));
        }

        add(poll, r.connections[i].socket(), kind::response,
            static_cast<std::uint32_t>(i));
        r.idle.push_back(i);
    }
}


nanoseconds
now()
{
    timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return ts.tv_sec * second + ts.tv_nsec;
}


/* Without a rate each is due at once. */
nanoseconds
due_at(const run &r, long number)
{
    return r.how.rate == 0 ? 0 : r.started + number * second / r.how.rate;
}


void
send_due(run &r)
{
    while (!r.idle.empty() && r.sent < r.how.requests) {
        nanoseconds at = now();
        nanoseconds due = due_at(r, r.sent);

        if (due > at) {
            return;
        }

        connection &c = r.connections[r.idle.front()];

        r.idle.pop_front();
        c.since = due == 0 ? at : due;

        if (!c.send_request(request_of(r.how, r.sent))) {
            fail("send: " + std::string(std::strerror(errno)));
        }

        ++r.sent;
    }
}


request
request_of(const options &how, long number)
{
    static const std::string body = json_of(how.body);
    request r = {how.path, {{"content-type", "application/json"}}, body};

    if (how.keys >= 0) {
        r.headers.emplace_back("idempotency-key", key_of(how, number));
    }

    for (long i = 0; i < how.headers; ++i) {
        r.headers.emplace_back("x-header-" + std::to_string(i), "value");
    }

    return r;
}


/* As long as a UUID. */
std::string
key_of(const options &how, long number)
{
    char key[64];

    number += how.from;

    std::snprintf(key, sizeof(key), "%.8s-0000-4000-8000-%012ld",
                  how.prefix.c_str(),
                  how.keys > 0 ? number % how.keys : number);

    return key;
}


/* A document of about this size, with some structure. */
std::string
json_of(long size)
{
    std::string body = "{\"order\":\"o-1\",\"currency\":\"EUR\",\"items\":[";
    std::string item = "{\"sku\":\"A-10087\",\"count\":3,\"price\":19.9,"
                       "\"gift\":false,\"name\":\"A box for other things\","
                       "\"note\":\"Oiled oak, 40 by 30 by 20 cm, to be "
                       "delivered with the rest of the order\"}";
    std::string end = "],\"note\":\"";
    auto limit = static_cast<std::size_t>(std::max(size, 1L));

    for (bool first = true; body.size() + item.size() + end.size() + 8 < limit;
         first = false)
    {
        body += (first ? "" : ",") + item;
    }

    body += end;
    body.append(limit > body.size() + 2 ? limit - body.size() - 2 : 0, 'x');

    return body + "\"}";
}


void
wait(run &r, int poll)
{
    epoll_event events[64];
    bool is_next_due = !r.idle.empty() && r.sent < r.how.requests;
    nanoseconds until = is_next_due ? due_at(r, r.sent) : now() + 10 * second;
    int n = poll_awake(poll, events, 64, until);

    if (n < 0 && errno != EINTR) {
        fail("epoll_wait");
    }

    if (n == 0 && !is_next_due) {
        fail("nothing came for 10 seconds");
    }

    for (int i = 0; i < n; ++i) {
        handle(r, poll, events[i].data.u64);
    }
}


/*
 * Whoever sends to a process that sleeps pays for waking it, by an interrupt
 * to another CPU if all there are idle.  That would be counted against the
 * gateway, and most against the slower ones.
 */
int
poll_awake(int poll, epoll_event *events, int limit, nanoseconds until)
{
    for (;;) {
        int n = epoll_wait(poll, events, limit, 0);

        if (n != 0 || now() >= until) {
            return n;
        }

        sched_yield();
    }
}


void
handle(run &r, int poll, std::uint64_t event)
{
    std::uint32_t index = event >> 32 & 0xffffff;
    auto number = static_cast<std::uint32_t>(event);

    switch (static_cast<kind>(event >> 56)) {

    case kind::response: read_from(r, index); break;

    case kind::new_request: {
        int accepted = r.applications[index].accept_one();

        add(poll, accepted, kind::request, index,
            static_cast<std::uint32_t>(accepted));
        break;
    }

    case kind::request: r.applications[index].serve(static_cast<int>(number));
    }
}


void
read_from(run &r, std::size_t index)
{
    connection &c = r.connections[index];

    switch (c.receive()) {

    case progress::more: return;

    case progress::ended: fail("the server has closed a connection");

    case progress::whole: break;
    }

    const response &got = c.so_far();

    ++r.done;
    ++r.statuses[got.status];
    r.short_ones += static_cast<long>(got.body.size()) < r.how.expect;
    r.times.push_back(now() - c.since);
    r.idle.push_back(index);
}


void
report(const run &r)
{
    auto times = r.times;
    double seconds = static_cast<double>(now() - r.started) / second;

    std::sort(times.begin(), times.end());

    std::printf("requests %ld seconds %.3f p50 %.1f p99 %.1f p999 %.1f "
                "short %ld",
                r.done, seconds, percentile(times, 0.5),
                percentile(times, 0.99), percentile(times, 0.999),
                r.short_ones);

    long executions = 0;

    for (const application &one : r.applications) {
        executions += one.executions;
    }

    std::printf(" executions %ld", executions);

    for (auto [status, count] : r.statuses) {
        std::printf(" status%d %ld", status, count);
    }

    std::printf("\n");
}


/* In microseconds. */
double
percentile(const std::vector<nanoseconds> &sorted, double share)
{
    if (sorted.empty()) {
        return 0;
    }

    auto at = static_cast<std::size_t>(share
                                       * static_cast<double>(sorted.size()));

    return static_cast<double>(sorted[std::min(at, sorted.size() - 1)]) / 1000;
}

}
