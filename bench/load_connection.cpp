#include "load.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

namespace load {

namespace {

constexpr std::uint8_t data_frame = 0, headers_frame = 1, reset_frame = 3,
                       settings_frame = 4, ping_frame = 6, goaway_frame = 7,
                       window_frame = 8;
constexpr std::uint8_t end_stream = 1, end_headers = 4, ack = 1;

sockaddr_in loopback(long port);
fields fields_of(std::string_view head);
std::string frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream,
                  std::string_view payload);
std::string hpack(std::string_view name, std::string_view value);
std::string hpack_text(std::string_view text);

}


connection::~connection()
{
    close();
}


bool
connection::open(long port, bool http2, int socket_flags)
{
    sockaddr_in to = loopback(port);
    int yes = 1;

    close();
    socket_ = ::socket(AF_INET, SOCK_STREAM | socket_flags, 0);

    if (socket_ < 0) {
        fail("socket: " + std::string(std::strerror(errno)));
    }

    if (connect(socket_, reinterpret_cast<sockaddr *>(&to), sizeof(to)) != 0
        && errno != EINPROGRESS)
    {
        return false;
    }

    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    http2_ = http2;

    if (http2_) {
        nghttp2_hd_inflate_new(&inflater_);

        /* Windows so large that they need no attention. */
        out_ = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
               + frame(settings_frame, 0, 0, {"\x00\x04\x7f\xff\xff\xff", 6})
               + frame(window_frame, 0, 0, {"\x7f\xff\x00\x00", 4});
    }

    return true;
}


bool
connection::send_request(const request &r)
{
    so_far_ = {};
    next_ = part::head;
    out_ += http2_ ? http2_request(r) : http1_request(r);

    return flush();
}


bool
connection::flush()
{
    while (!out_.empty()) {
        ssize_t n = send(socket_, out_.data(), out_.size(), MSG_NOSIGNAL);

        if (n < 0) {
            return errno == EAGAIN;
        }

        out_.erase(0, static_cast<std::size_t>(n));
    }

    return true;
}


progress
connection::receive()
{
    char bytes[65536];
    ssize_t n = recv(socket_, bytes, sizeof(bytes), 0);

    if (n < 0 && errno == EAGAIN) {
        return progress::more;
    }

    if (n > 0) {
        in_.append(bytes, static_cast<std::size_t>(n));
    }

    if (http2_) {
        while (next_ != part::whole && !is_reset_ && read_frame()) {
        }
    } else {
        read_http1();
    }

    /* A body without a length is whole if its connection was closed. */
    if (next_ == part::whole || (next_ == part::unsized && n == 0)) {
        return progress::whole;
    }

    return n <= 0 || is_reset_ ? progress::ended : progress::more;
}


void
connection::cancel()
{
    if (http2_) {
        out_ += frame(reset_frame, 0, stream_ - 2, {"\x00\x00\x00\x08", 4});
        flush();
    }
}


void
connection::close()
{
    if (socket_ != -1) {
        ::close(socket_);
        socket_ = -1;
    }

    if (inflater_) {
        nghttp2_hd_inflate_del(inflater_);
        inflater_ = nullptr;
    }
}


void
connection::reset()
{
    linger hard = {1, 0};

    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    close();
}


std::string
connection::http1_request(const request &r) const
{
    std::string out = "POST " + r.path + " HTTP/1.1\r\nHost: localhost\r\n";

    for (auto &[name, value] : r.headers) {
        out += name + ": " + value + "\r\n";
    }

    out += "Content-Length: " + std::to_string(r.body.size()) + "\r\n\r\n";

    return out + r.body;
}


void
connection::read_http1()
{
    bool goes_on = true;

    while (goes_on) {
        switch (next_) {

        case part::head: goes_on = read_head(); break;

        case part::sized: goes_on = read_sized(); break;

        case part::chunked: goes_on = read_chunk(); break;

        case part::unsized: so_far_.body += std::exchange(in_, {}); return;

        case part::whole: return;
        }
    }
}


bool
connection::read_head()
{
    std::size_t end = in_.find("\r\n\r\n");

    if (end == std::string::npos) {
        return false;
    }

    std::string head = in_.substr(0, end + 2);
    in_.erase(0, end + 4);

    int status = std::atoi(head.c_str() + std::min(head.size(), 9UL));

    if (status / 100 == 1) {
        return true;
    }

    so_far_.status = status;
    so_far_.headers = fields_of(head);
    std::string_view length = load::header(head, "content-length");

    if (!load::header(head, "transfer-encoding").empty()) {
        next_ = part::chunked;
    } else if (!length.empty()) {
        left_ = std::stoul(std::string(length));
        next_ = part::sized;
    } else {
        next_ = part::unsized;
    }

    if (status == 204 || status == 304) {
        next_ = part::whole;
    }

    return true;
}


bool
connection::read_sized()
{
    std::size_t n = std::min(left_, in_.size());

    so_far_.body.append(in_, 0, n);
    in_.erase(0, n);
    left_ -= n;

    if (left_ == 0) {
        next_ = part::whole;
    }

    return left_ == 0;
}


/* nginx sends no trailers after the last chunk. */
bool
connection::read_chunk()
{
    std::size_t line = in_.find("\r\n");

    if (line == std::string::npos) {
        return false;
    }

    std::size_t size = std::strtoul(in_.c_str(), nullptr, 16);

    if (in_.size() < line + 2 + size + 2) {
        return false;
    }

    so_far_.body.append(in_, line + 2, size);
    in_.erase(0, line + 2 + size + 2);

    if (size == 0) {
        next_ = part::whole;
    }

    return true;
}


std::string
connection::http2_request(const request &r)
{
    /* POST and http are in the static table. */
    std::string block = "\x83\x86" + hpack(":path", r.path)
                        + hpack(":authority", "localhost");

    for (auto &[name, value] : r.headers) {
        block += hpack(name, value);
    }

    block += hpack("content-length", std::to_string(r.body.size()));

    std::string out = frame(headers_frame, end_headers, stream_, block);

    for (std::size_t at = 0; at < r.body.size(); at += 16384) {
        bool last = at + 16384 >= r.body.size();

        out += frame(data_frame, last ? end_stream : 0, stream_,
                     std::string_view(r.body).substr(at, 16384));
    }

    stream_ += 2;

    return out;
}


bool
connection::read_frame()
{
    if (in_.size() < 9) {
        return false;
    }

    auto *b = reinterpret_cast<const std::uint8_t *>(in_.data());
    std::size_t size = static_cast<std::size_t>(b[0]) << 16
                       | static_cast<std::size_t>(b[1]) << 8 | b[2];
    std::uint8_t type = b[3], flags = b[4];

    if (in_.size() < 9 + size) {
        return false;
    }

    std::string payload = in_.substr(9, size);
    in_.erase(0, 9 + size);

    if ((type == settings_frame || type == ping_frame) && !(flags & ack)) {
        out_ += frame(type, ack, 0,
                      type == ping_frame ? payload : std::string());
        flush();
    }

    /* Without an error: the rest of a request is not needed. */
    if (type == reset_frame && payload != std::string(4, '\0')) {
        is_reset_ = true;
    }

    if (type == headers_frame) {
        read_header_block(payload);
    }

    if (type == data_frame) {
        so_far_.body += payload;
    }

    if ((type == headers_frame || type == data_frame) && (flags & end_stream))
    {
        next_ = part::whole;
    }

    return true;
}


/* nginx sends a header in one frame, without padding. */
void
connection::read_header_block(std::string_view block)
{
    auto *at = reinterpret_cast<const std::uint8_t *>(block.data());
    std::size_t left = block.size();

    for (;;) {
        nghttp2_nv field;
        int flags = 0;
        ssize_t n = nghttp2_hd_inflate_hd2(inflater_, &field, &flags, at, left,
                                           1);

        if (n < 0) {
            is_reset_ = true;
            return;
        }

        at += n;
        left -= static_cast<std::size_t>(n);

        if (flags & NGHTTP2_HD_INFLATE_EMIT) {
            std::string name(reinterpret_cast<char *>(field.name),
                             field.namelen);
            std::string value(reinterpret_cast<char *>(field.value),
                              field.valuelen);

            if (name == ":status") {
                so_far_.status = std::atoi(value.c_str());
            } else {
                so_far_.headers.emplace_back(name, value);
            }
        }

        if (flags & NGHTTP2_HD_INFLATE_FINAL) {
            nghttp2_hd_inflate_end_headers(inflater_);
            return;
        }
    }
}


std::string
response::header(std::string_view name) const
{
    std::string values;

    for (auto &[each, value] : headers) {
        if (each == name) {
            values += (values.empty() ? "" : ",") + value;
        }
    }

    return values;
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


int
listen_on(long port, int socket_flags)
{
    sockaddr_in at = loopback(port);
    int yes = 1;
    int socket = ::socket(AF_INET, SOCK_STREAM | socket_flags, 0);

    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));

    if (bind(socket, reinterpret_cast<sockaddr *>(&at), sizeof(at)) != 0
        || listen(socket, 1024) != 0)
    {
        fail("listen: " + std::string(std::strerror(errno)));
    }

    return socket;
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


void
fail(const std::string &why)
{
    std::fprintf(stderr, "load: %s\n", why.c_str());
    std::exit(1);
}


namespace {

sockaddr_in
loopback(long port)
{
    sockaddr_in address = {};

    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);

    return address;
}


fields
fields_of(std::string_view head)
{
    fields all;

    for (std::size_t at = head.find("\r\n") + 2; at < head.size();) {
        std::size_t end = head.find("\r\n", at);
        std::string_view line = head.substr(at, end - at);
        std::size_t colon = line.find(':');

        at = end + 2;

        if (colon == std::string_view::npos) {
            continue;
        }

        std::string name(line.substr(0, colon));
        std::size_t value = line.find_first_not_of(" \t", colon + 1);

        std::transform(name.begin(), name.end(), name.begin(),
                       [](unsigned char c) { return std::tolower(c); });
        all.emplace_back(name, line.substr(std::min(value, line.size())));
    }

    return all;
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


/* A literal that is not put into the table. */
std::string
hpack(std::string_view name, std::string_view value)
{
    return std::string(1, '\0') + hpack_text(name) + hpack_text(value);
}


/* Its length with a prefix of 7 bits, then its bytes. */
std::string
hpack_text(std::string_view text)
{
    std::size_t size = text.size();
    std::string out(1, static_cast<char>(std::min(size, 127UL)));

    if (size >= 127) {
        for (size -= 127; size >= 128; size /= 128) {
            out += static_cast<char>(size % 128 | 128);
        }

        out += static_cast<char>(size);
    }

    return out.append(text);
}

}

}
