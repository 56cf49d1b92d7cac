#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/* The load generator's connections, see load.cpp. */

namespace load {

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


struct response {
    int status = 0;
    long size = 0; /* of its body */
};


class connection {
public:
    std::int64_t since = 0; /* when the present request began to wait */

    void open(const options &how);
    void send_request(const options &how, long number);

    /* Takes what has come; true: the response is whole. */
    bool receive(response &got);

    int socket() const { return socket_; }

private:
    bool whole_http1(response &got);
    bool whole_http2(response &got);
    std::string http1_request(const options &how, const std::string &key);
    std::string http2_request(const options &how, const std::string &key);

    int socket_ = -1;
    bool http2_ = false;
    std::uint32_t stream_ = 1; /* of the next request */
    std::string in_;
    response so_far_; /* HTTP/2 */
};


/* A document of about this size, with some structure. */
std::string json_of(long size);

void send_all(int socket, std::string_view bytes);

/* The value of a header in an HTTP/1 head; empty: there is none. */
std::string_view header(std::string_view head, std::string_view name);

[[noreturn]] void fail(const std::string &why);

}
