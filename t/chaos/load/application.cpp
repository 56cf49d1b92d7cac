#include "kit.h"
#include "load.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <deque>
#include <memory>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/*
 * The application of upstream.pl, for loads that this is too slow for.  Its
 * ledger has the same lines, and X-Do the same words.
 *
 *     application --port N --ledger FILE --name A1 --parent PID
 *
 * A line is written before what it tells of is done.  It is not synced to the
 * disk: a process that is killed loses nothing that it has written.
 */

using namespace chaos;

namespace {

constexpr double piece_gap = 0.08;


/* What is known of a request. */
struct run {
    std::string id;
    std::string key;
    std::string body; /* digest */
    std::map<std::string, std::string> wishes;
    bool is_over = false; /* its end is in the ledger */

    const std::string &wish(const std::string &name) const;
    long wished_number(const std::string &name) const;
};


struct client {
    int socket = -1;
    int port = 0;
    std::string in, out;
    std::deque<std::string> pieces; /* to follow, with gaps between them */
    std::unique_ptr<run> request;
    bool dies = false; /* once all is sent */
};

using client_ptr = std::shared_ptr<client>;


class application {
public:
    explicit application(const arguments &given);

    void serve();

private:
    void accept_all();
    void on_event(const client_ptr &c, std::uint32_t events);
    void receive(const client_ptr &c);
    void start_run(const client_ptr &c);
    void begin(client &c, std::string_view head, std::string_view body);
    void answer(const client_ptr &c);
    void send_part(client &c, std::string bytes);
    void send_piece(const client_ptr &c);
    void flush(client &c);
    void hung_up(client &c);
    void leave(client &c);
    void drop(client &c);
    void write_line(const run &r, const char *what, line more = {});

    loop loop_;
    line_file ledger_;
    std::string name_;
    pid_t parent_;
    int listener_;
    long runs_ = 0;
};


std::map<std::string, std::string> words_of(std::string_view text);
std::string head_of(const run &r, const std::string &status,
                    std::size_t length);
std::string status_of(const run &r);
std::string body_of(const run &r);
std::deque<std::string> pieces_of(const run &r, const std::string &head,
                                  const std::string &body);

}


int
main(int count, char **words)
{
    std::signal(SIGPIPE, SIG_IGN);
    application(arguments(count, words)).serve();

    return 0;
}


namespace {

application::application(const arguments &given)
    : ledger_(given.text("ledger")), name_(given.text("name")),
      parent_(static_cast<pid_t>(given.number("parent", getppid()))),
      listener_(load::listen_on(static_cast<long>(given.number("port", 0)),
                                SOCK_NONBLOCK | SOCK_CLOEXEC))
{}


void
application::serve()
{
    loop_.watch(listener_, EPOLLIN, [this](std::uint32_t) { accept_all(); });

    while (getppid() == parent_) {
        loop_.step(now() + 0.5);
    }
}


void
application::accept_all()
{
    for (;;) {
        sockaddr_in from = {};
        socklen_t size = sizeof(from);
        int yes = 1;
        int socket = accept4(listener_, reinterpret_cast<sockaddr *>(&from),
                             &size, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (socket < 0) {
            return;
        }

        auto c = std::make_shared<client>();

        c->socket = socket;
        c->port = ntohs(from.sin_port);
        setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
        loop_.watch(socket, EPOLLIN,
                    [this, c](std::uint32_t events) { on_event(c, events); });
    }
}


void
application::on_event(const client_ptr &c, std::uint32_t events)
{
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        receive(c);
    }

    if ((events & EPOLLOUT) && c->socket != -1) {
        flush(*c);
    }
}


void
application::receive(const client_ptr &c)
{
    char bytes[65536];
    ssize_t n = recv(c->socket, bytes, sizeof(bytes), 0);

    if (n < 0 && errno == EAGAIN) {
        return;
    }

    if (n <= 0) {
        hung_up(*c);
        return;
    }

    c->in.append(bytes, static_cast<std::size_t>(n));

    if (!c->request) {
        start_run(c);
    }
}


void
application::start_run(const client_ptr &c)
{
    std::size_t end = c->in.find("\r\n\r\n");

    if (end == std::string::npos) {
        return;
    }

    std::string head = c->in.substr(0, end + 2);
    auto wishes = words_of(load::header(head, "x-do"));
    std::string length(load::header(head, "content-length"));
    std::size_t size = length.empty() ? 0 : std::stoul(length);
    bool is_unread = wishes["die"] == "unread";

    if (!is_unread && c->in.size() < end + 4 + size) {
        return;
    }

    std::string body = c->in.substr(end + 4, size);

    c->in.clear();
    c->request = std::make_unique<run>();
    c->request->wishes = std::move(wishes);
    begin(*c, head, body);

    if (is_unread) {
        leave(*c);
        return;
    }

    std::string seconds = c->request->wish("sleep");

    loop_.at(now() + std::atof(seconds.c_str()), [this, c] { answer(c); });
}


void
application::begin(client &c, std::string_view head, std::string_view body)
{
    run &r = *c.request;
    line more;

    r.id = name_ + "." + std::to_string(++runs_);
    r.key = load::header(head, "idempotency-key");
    r.body = sha1_hex(body);

    more.set("does", r.wish("die") == "unread"    ? "unread"
                     : r.wish("refuse").empty()   ? "executes"
                     : r.wish("refuse") == "word" ? "releases"
                                                  : "refuses");
    more.set("body", r.body);
    more.set("port", std::to_string(c.port));

    for (std::string name :
         {"attempt", "token", "life", "worker", "route", "do"}) {
        more.set(name, load::header(head, "x-" + name));
    }

    write_line(r, "run", std::move(more));
}


void
application::answer(const client_ptr &c)
{
    if (c->socket == -1) {
        return;
    }

    const run &r = *c->request;
    const std::string &die = r.wish("die");

    if (die == "executed") {
        leave(*c);
        return;
    }

    std::string status = status_of(r);
    std::string body = body_of(r);
    std::string head = head_of(r, status, body.size());
    line more;

    more.set("status", status);
    more.set("sha", sha1_hex(body));
    write_line(r, "answer", std::move(more));

    if (die == "header") {
        send_part(*c, head.substr(0, head.size() / 2));
        return;
    }

    if (die == "body") {
        send_part(*c, head + body.substr(0, body.size() / 2));
        return;
    }

    c->pieces = pieces_of(r, head, body);
    send_piece(c);
}


void
application::send_part(client &c, std::string bytes)
{
    c.dies = true;
    c.out = std::move(bytes);
    flush(c);
}


void
application::send_piece(const client_ptr &c)
{
    if (c->socket == -1) {
        return;
    }

    c->out += c->pieces.front();
    c->pieces.pop_front();

    if (!c->pieces.empty()) {
        loop_.at(now() + piece_gap, [this, c] { send_piece(c); });
    }

    flush(*c);
}


void
application::flush(client &c)
{
    if (!c.out.empty()) {
        ssize_t n = send(c.socket, c.out.data(), c.out.size(), MSG_NOSIGNAL);

        if (n < 0 && errno != EAGAIN) {
            hung_up(c);
            return;
        }

        c.out.erase(0, static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
    }

    loop_.change(c.socket, c.out.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT);

    if (!c.out.empty() || !c.pieces.empty() || !c.request) {
        return;
    }

    if (c.dies) {
        leave(c);
        return;
    }

    line more;

    more.set("how", "answered");
    write_line(*c.request, "end", std::move(more));
    c.request->is_over = true;
    drop(c);
}


/* The application goes on with what it has begun, as applications do. */
void
application::hung_up(client &c)
{
    if (c.request && !c.request->is_over) {
        write_line(*c.request, "cut");
        c.request->is_over = true;
    }

    drop(c);
}


void
application::leave(client &c)
{
    if (!c.request->is_over) {
        line more;

        more.set("how", "died");
        write_line(*c.request, "end", std::move(more));
        c.request->is_over = true;
    }

    if (!c.request->wish("rst").empty()) {
        linger hard = {1, 0};

        setsockopt(c.socket, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    }

    drop(c);
}


void
application::drop(client &c)
{
    loop_.forget(c.socket);
    close(c.socket);
    c.socket = -1;
}


void
application::write_line(const run &r, const char *what, line more)
{
    more.set("what", what);
    more.set("id", r.id);
    more.set("key", r.key);
    more.set("app", name_);
    more.set_time("t", now());
    ledger_.append(more);
}


const std::string &
run::wish(const std::string &name) const
{
    static const std::string none;
    auto found = wishes.find(name);

    return found == wishes.end() ? none : found->second;
}


long
run::wished_number(const std::string &name) const
{
    return std::atol(wish(name).c_str());
}


/* Of a=b&c=d. */
std::map<std::string, std::string>
words_of(std::string_view text)
{
    std::map<std::string, std::string> words;

    while (!text.empty()) {
        std::string_view word = text.substr(0, text.find('&'));
        std::size_t equals = std::min(word.find('='), word.size());

        words.emplace(word.substr(0, equals),
                      word.substr(std::min(equals + 1, word.size())));
        text.remove_prefix(std::min(word.size() + 1, text.size()));
    }

    return words;
}


std::string
status_of(const run &r)
{
    const std::string &refuse = r.wish("refuse");

    return refuse == "word"            ? "502"
           : !refuse.empty()           ? refuse
           : !r.wish("status").empty() ? r.wish("status")
                                       : "201";
}


/* No two runs give the same bytes. */
std::string
body_of(const run &r)
{
    std::string text = "{\"execution\":\"" + r.id + "\",\"key\":\"" + r.key
                       + "\",\"request\":\"" + r.body + "\"}\n";
    std::string block = sha1_hex(r.id);
    std::size_t size = text.size()
                       + static_cast<std::size_t>(r.wished_number("size"));

    while (text.size() < size) {
        text.append(block, 0, size - text.size());
    }

    return text;
}


std::string
head_of(const run &r, const std::string &status, std::size_t length)
{
    bool is_executed = r.wish("refuse").empty() && r.wish("status").empty();
    std::string head = "HTTP/1.1 " + status
                       + " Whatever\r\nContent-Type: application/json\r\n";

    head += r.wish("chunked").empty()
                ? "Content-Length: " + std::to_string(length) + "\r\n"
                : "Transfer-Encoding: chunked\r\n";
    head += "X-Execution: " + r.id + "\r\nLocation: /orders/" + r.id + "\r\n";

    if (r.wish("refuse") == "word") {
        head += "X-Accel-Idempotency: release\r\n";
    } else if (is_executed && !r.wish("discard").empty()) {
        head += "X-Accel-Idempotency: discard\r\n";
    }

    return head + "Connection: close\r\n\r\n";
}


std::deque<std::string>
pieces_of(const run &r, const std::string &head, const std::string &body)
{
    auto count = static_cast<std::size_t>(r.wished_number("pieces"));
    std::size_t size = count ? body.size() / count + 1 : body.size();
    bool is_chunked = !r.wish("chunked").empty();
    std::deque<std::string> pieces;

    for (std::size_t at = 0; at < body.size(); at += size) {
        std::string piece = body.substr(at, size);
        char line[32];

        if (is_chunked) {
            std::snprintf(line, sizeof(line), "%zx\r\n", piece.size());
            piece = line + piece + "\r\n";
        }

        pieces.push_back(std::move(piece));
    }

    if (is_chunked) {
        pieces.back() += "0\r\n\r\n";
    }

    pieces.front() = head + pieces.front();

    return pieces;
}

}
