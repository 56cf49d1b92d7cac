#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct nghttp2_hd_inflater;

/* The connections of the load generators: load.cpp, t/chaos/load/clients.cpp.
 */

namespace load {

/* Names in lower case. */
using fields = std::vector<std::pair<std::string, std::string>>;


struct request {
    std::string path;
    fields headers;
    std::string body;
};


struct response {
    int status = 0; /* 0: its header has not come yet */
    fields headers;
    std::string body;

    /* Values of a header, with commas between them. */
    std::string header(std::string_view name) const;
};


enum class progress { more, whole, ended };


/*
 * A connection to a server on this machine, with one request at a time.  Its
 * socket blocks, unless open() is told otherwise: then flush() is to be called
 * when the socket becomes writable.
 */
class connection {
public:
    std::int64_t since = 0; /* when the present request began to wait */

    connection() = default;
    connection(connection &&) = delete;
    ~connection();

    /* False: nobody listens there. */
    bool open(long port, bool http2, int socket_flags = 0);

    /* False: the connection is lost. */
    bool send_request(const request &r);
    bool flush();
    bool has_to_send() const { return !out_.empty(); }

    /* Takes what has come.  ended: nothing more will come. */
    progress receive();

    /* What there is of the response. */
    const response &so_far() const { return so_far_; }

    /* Resets the stream (HTTP/2 only). */
    void cancel();

    void close();
    void reset();

    int socket() const { return socket_; }

private:
    enum class part { head, sized, chunked, unsized, whole };

    std::string http1_request(const request &r) const;
    std::string http2_request(const request &r);

    void read_http1();
    bool read_head();
    bool read_sized();
    bool read_chunk();

    bool read_frame();
    void read_header_block(std::string_view block);

    int socket_ = -1;
    bool http2_ = false;
    std::string in_;
    std::string out_;
    response so_far_;
    part next_ = part::head; /* HTTP/1: what comes next */
    std::size_t left_ = 0;   /* of a body whose length is known */
    bool is_reset_ = false;
    std::uint32_t stream_ = 1; /* of the next request */
    nghttp2_hd_inflater *inflater_ = nullptr;
};


/* The value of a header in an HTTP/1 head; empty: there is none. */
std::string_view header(std::string_view head, std::string_view name);

/* A socket that listens on a port of the loopback address. */
int listen_on(long port, int socket_flags = 0);

void send_all(int socket, std::string_view bytes);

[[noreturn]] void fail(const std::string &why);

}
