#include "load.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

namespace load {

namespace {

constexpr std::uint8_t data_frame = 0, headers_frame = 1, reset_frame = 3,
                       settings_frame = 4, ping_frame = 6, goaway_frame = 7,
                       window_frame = 8;
constexpr std::uint8_t end_stream = 1, end_headers = 4, ack = 1;

std::string key_of(const options &how, long number);
const std::string &body_of(const options &how);
std::string frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream,
                  std::string_view payload);
std::string hpack(std::string_view name, std::string_view value);
int status_of(std::string_view block);

}


void
connection::open(const options &how)
{
    sockaddr_in to = {};
    int yes = 1;

    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(how.port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);

    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);

    if (connect(socket_, reinterpret_cast<sockaddr *>(&to), sizeof(to)) != 0) {
        fail("connect: " + std::string(std::strerror(errno)));
    }

    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    http2_ = how.http2;

    if (http2_) {
        /* Windows so large that they need no attention. */
        send_all(
            socket_,
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                + frame(settings_frame, 0, 0, {"\x00\x04\x7f\xff\xff\xff", 6})
                + frame(window_frame, 0, 0, {"\x7f\xff\x00\x00", 4}));
    }
}


void
connection::send_request(const options &how, long number)
{
    std::string key = key_of(how, number);

    so_far_ = {};
    send_all(socket_,
             http2_ ? http2_request(how, key) : http1_request(how, key));
}


bool
connection::receive(response &got)
{
    char bytes[65536];
    ssize_t n = recv(socket_, bytes, sizeof(bytes), 0);

    if (n <= 0) {
        fail("the server has closed a connection");
    }

    in_.append(bytes, static_cast<std::size_t>(n));

    return http2_ ? whole_http2(got) : whole_http1(got);
}


std::string
connection::http1_request(const options &how, const std::string &key)
{
    const std::string &body = body_of(how);
    std::string out = "POST " + how.path
                      + " HTTP/1.1\r\nHost: localhost\r\n"
                        "Content-Type: application/json\r\n";

    if (!key.empty()) {
        out += "Idempotency-Key: " + key + "\r\n";
    }

    for (long i = 0; i < how.headers; ++i) {
        out += "X-Header-" + std::to_string(i) + ": value\r\n";
    }

    out += "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n";

    return out + body;
}


bool
connection::whole_http1(response &got)
{
    std::size_t end = in_.find("\r\n\r\n");

    if (end == std::string::npos) {
        return false;
    }

    std::string_view head = std::string_view(in_).substr(0, end + 2);
    std::string_view body = std::string_view(in_).substr(end + 4);
    std::string_view length = header(head, "content-length");

    if (length.empty()) {

        /* Chunks; nothing in a body of ours looks like the last one. */
        if (!body.ends_with("0\r\n\r\n")) {
            return false;
        }

    } else if (body.size() < std::stoul(std::string(length))) {
        return false;
    }

    got = {std::atoi(in_.c_str() + 9), static_cast<long>(body.size())};
    in_.clear();

    return true;
}


std::string
connection::http2_request(const options &how, const std::string &key)
{
    const std::string &body = body_of(how);

    /* POST and http are in the static table. */
    std::string block = "\x83\x86" + hpack(":path", how.path)
                        + hpack(":authority", "localhost")
                        + hpack("content-type", "application/json")
                        + hpack("content-length", std::to_string(body.size()));

    if (!key.empty()) {
        block += hpack("idempotency-key", key);
    }

    std::string out = frame(headers_frame, end_headers, stream_, block);

    for (std::size_t at = 0; at < body.size(); at += 16384) {
        bool last = at + 16384 >= body.size();

        out += frame(data_frame, last ? end_stream : 0, stream_,
                     std::string_view(body).substr(at, 16384));
    }

    stream_ += 2;

    return out;
}


bool
connection::whole_http2(response &got)
{
    while (in_.size() >= 9) {
        auto *b = reinterpret_cast<const std::uint8_t *>(in_.data());
        std::size_t size = static_cast<std::size_t>(b[0]) << 16
                           | static_cast<std::size_t>(b[1]) << 8 | b[2];
        std::uint8_t type = b[3], flags = b[4];

        if (in_.size() < 9 + size) {
            return false;
        }

        std::string payload = in_.substr(9, size);
        in_.erase(0, 9 + size);

        /* Without an error: the rest of a request is not needed. */
        bool harmless = type == reset_frame && payload == std::string(4, '\0');

        if ((type == reset_frame && !harmless) || type == goaway_frame) {
            fail("the server has ended an HTTP/2 stream");
        }

        if ((type == settings_frame || type == ping_frame) && !(flags & ack)) {
            send_all(socket_,
                     frame(type, ack, 0,
                           type == ping_frame ? payload : std::string()));
        }

        if (type == headers_frame) {
            so_far_.status = status_of(payload);
        }

        if (type == data_frame) {
            so_far_.size += static_cast<long>(size);
        }

        if ((type == headers_frame || type == data_frame)
            && (flags & end_stream)) {
            got = so_far_;
            return true;
        }
    }

    return false;
}


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
send_all(int socket, std::string_view bytes)
{
    while (!bytes.empty()) {
        ssize_t n = send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);

        if (n <= 0) {
            fail("send: " + std::string(std::strerror(errno)));
        }

        bytes.remove_prefix(static_cast<std::size_t>(n));
    }
}


std::string_view
header(std::string_view head, std::string_view name)
{
    for (std::size_t at = head.find("\r\n"); at + 2 < head.size();
         at = head.find("\r\n", at + 2))
    {
        std::string_view line = head.substr(at + 2);

        if (line.size() > name.size() && line[name.size()] == ':'
            && strncasecmp(line.data(), name.data(), name.size()) == 0)
        {
            line.remove_prefix(name.size() + 2);
            return line.substr(0, line.find("\r\n"));
        }
    }

    return {};
}


void
fail(const std::string &why)
{
    std::fprintf(stderr, "load: %s\n", why.c_str());
    std::exit(1);
}


namespace {

/* As long as a UUID. */
std::string
key_of(const options &how, long number)
{
    char key[64];

    if (how.keys < 0) {
        return "";
    }

    number += how.from;

    std::snprintf(key, sizeof(key), "%.8s-0000-4000-8000-%012ld",
                  how.prefix.c_str(),
                  how.keys > 0 ? number % how.keys : number);

    return key;
}


const std::string &
body_of(const options &how)
{
    static const std::string body = json_of(how.body);

    return body;
}


std::string
frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream,
      std::string_view payload)
{
    auto n = static_cast<std::uint32_t>(payload.size());
    std::string out;

    for (int shift = 16; shift >= 0; shift -= 8) {
        out += static_cast<char>(n >> shift);
    }

    out += static_cast<char>(type);
    out += static_cast<char>(flags);

    for (int shift = 24; shift >= 0; shift -= 8) {
        out += static_cast<char>(stream >> shift);
    }

    return out += payload;
}


/* A literal that is not put into the table; both are short. */
std::string
hpack(std::string_view name, std::string_view value)
{
    std::string out(1, '\0');

    out += static_cast<char>(name.size());
    out += name;
    out += static_cast<char>(value.size());

    return out += value;
}


/* nginx begins with the status: by its place in the table if it is 200. */
int
status_of(std::string_view block)
{
    return block.starts_with('\x88') ? 200 : 0;
}

}

}
