#include "exchange.h"

#include <cctype>
#include <cstdio>

#include <sys/epoll.h>
#include <sys/socket.h>

namespace chaos {

namespace {

constexpr double patience = 8;

std::string code_of(const std::string &body);
std::string ident_of(const load::response &got);

}


exchange::exchange(loop &events, line_file &history, const std::string &client)
    : loop_(events), history_(history)
{
    line_.set("client", client);
}


void
exchange::start(const key &what, const way &how, done whenever)
{
    std::string body = what.body(how.is_right);
    load::request request = {
        "/" + what.where.name,
        {{"idempotency-key", what.name}, {"x-do", how.wish}},
        body};

    how_ = how;
    done_ = std::move(whenever);
    line_.set("key", what.name);
    line_.set("route", what.where.name);
    line_.set("instance", std::to_string(how.instance));
    line_.set("proto", how.http2 ? "h2" : "h1");
    line_.set("via", how.via_proxy ? "proxy" : "direct");
    line_.set("body", sha1_hex(body));
    line_.set("phase", how.phase);
    line_.set_time("t", now());

    if (std::string type = what.type(); !type.empty()) {
        request.headers.emplace_back("content-type", type);
    }

    if (!how.http2) {
        request.headers.emplace_back("connection", "close");
    }

    if (!connection_.open(how.port, how.http2, SOCK_NONBLOCK | SOCK_CLOEXEC)
        || !connection_.send_request(request))
    {
        end("no connection");
        return;
    }

    loop_.watch(connection_.socket(),
                connection_.has_to_send() ? EPOLLIN | EPOLLOUT : EPOLLIN,
                [self = shared_from_this()](std::uint32_t events) {
                    self->on_event(events);
                });
    set_timer(now() + (how.leave < 0 ? patience : how.leave),
              [this] { on_time(); });
}


void
exchange::on_event(std::uint32_t events)
{
    if (events & EPOLLOUT) {
        if (!connection_.flush()) {
            end("no connection");
            return;
        }

        if (!connection_.has_to_send()) {
            loop_.change(connection_.socket(), EPOLLIN);
        }
    }

    if (!(events & (EPOLLIN | EPOLLERR | EPOLLHUP))) {
        return;
    }

    switch (connection_.receive()) {

    case load::progress::more: break;

    case load::progress::whole: tell(true); break;

    case load::progress::ended:
        if (connection_.so_far().status) {
            tell(false);
        } else {
            end(connection_.has_to_send() ? "no connection" : "cut off");
        }
    }
}


void
exchange::on_time()
{
    if (how_.leave >= 0) {
        hang_up();
    } else if (connection_.so_far().status) {
        tell(false);
    } else {
        end(connection_.has_to_send() ? "no connection" : "timed out");
    }
}


void
exchange::hang_up()
{
    loop_.forget(connection_.socket());

    if (how_.http2 && how_.odds < 0.4) {
        connection_.cancel();
        loop_.at(now() + 0.01,
                 [self = shared_from_this()] { self->note_left(); });
        return;
    }

    if (how_.odds < 0.7) {
        connection_.close();
    } else {
        connection_.reset();
    }

    note_left();
}


void
exchange::note_left()
{
    char seconds[32];

    std::snprintf(seconds, sizeof(seconds), "%.3f", how_.leave);
    line_.set("left", seconds);
    finish({});
}


void
exchange::end(const std::string &error)
{
    line_.set("error", error);
    finish({});
}


void
exchange::tell(bool is_whole)
{
    const load::response &got = connection_.so_far();
    std::string code = code_of(got.body);

    line_.set("status", std::to_string(got.status));
    line_.set("code", code);
    line_.set("sha", sha1_hex(got.body));
    line_.set("complete", is_whole ? "1" : "0");
    line_.set("replayed",
              got.header("idempotent-replayed").empty() ? "0" : "1");
    line_.set("execution", got.header("x-execution"));
    line_.set("life", got.header("x-life"));
    line_.set("worker", got.header("x-worker"));
    line_.set("ident", ident_of(got));
    finish({got.status, code});
}


void
exchange::finish(const told &result)
{
    auto self = shared_from_this();

    if (timer_) {
        loop_.cancel(*timer_);
        timer_.reset();
    }

    if (connection_.socket() != -1) {
        loop_.forget(connection_.socket());
        connection_.close();
    }

    line_.set_time("ended", now());
    history_.append(line_);
    done_(result);
}


/* The timer does not hold the exchange: it ends before it. */
void
exchange::set_timer(double time, loop::action a)
{
    timer_ = loop_.at(time, [self = weak_from_this(), a] {
        if (auto living = self.lock()) {
            living->timer_.reset();
            a();
        }
    });
}


namespace {

/* "code": "word" in a problem. */
std::string
code_of(const std::string &body)
{
    static const std::string name = "\"code\":";
    std::size_t at = body.find(name);

    if (at == std::string::npos) {
        return "";
    }

    at = body.find_first_not_of(" \t\r\n", at + name.size());

    if (at == std::string::npos || body[at] != '"') {
        return "";
    }

    std::size_t end = ++at;

    while (end < body.size()
           && (std::isalnum(static_cast<unsigned char>(body[end]))
               || body[end] == '_'))
    {
        ++end;
    }

    return end < body.size() && body[end] == '"' ? body.substr(at, end - at)
                                                 : "";
}


/* All that must not differ between two answers, but for the body. */
std::string
ident_of(const load::response &got)
{
    return sha1_hex(
        std::to_string(got.status) + "\n" + got.header("content-type") + "\n"
        + got.header("location") + "\n" + got.header("x-execution"));
}

}

}
