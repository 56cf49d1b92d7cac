#include "load_application.h"

#include "load.h"

#include <cerrno>
#include <cstring>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace load {

namespace {

bool take_request(std::string &in);

}


application::application(long port, long size)
{
    socket_ = listen_on(port);
    answer_ = "HTTP/1.1 200 OK\r\nServer: application\r\n"
              "Date: Wed, 18 Nov 2026 12:00:00 GMT\r\n"
              "Content-Type: text/plain\r\nContent-Length: "
              + std::to_string(size) + "\r\nConnection: keep-alive\r\n\r\n"
              + std::string(static_cast<std::size_t>(size), 'x');
}


int
application::accept_one()
{
    int yes = 1, room = 1 << 20;
    int connection = accept(socket_, nullptr, nullptr);

    if (connection < 0) {
        fail("accept: " + std::string(std::strerror(errno)));
    }

    /* An answer always fits, so that nothing has to wait for the reader. */
    setsockopt(connection, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    in_[connection].clear();

    return connection;
}


void
application::serve(int connection)
{
    char bytes[65536];
    std::string &in = in_[connection];
    ssize_t n = recv(connection, bytes, sizeof(bytes), 0);

    if (n <= 0) {
        close(connection);
        in_.erase(connection);
        return;
    }

    in.append(bytes, static_cast<std::size_t>(n));

    while (take_request(in)) {
        ++executions;
        send_all(connection, answer_);
    }
}


namespace {

/* Whether a whole one was there. */
bool
take_request(std::string &in)
{
    std::size_t end = in.find("\r\n\r\n");

    if (end == std::string::npos) {
        return false;
    }

    std::string_view head = std::string_view(in).substr(0, end + 2);
    std::string length(header(head, "content-length"));
    std::size_t size = end + 4 + (length.empty() ? 0 : std::stoul(length));

    if (in.size() < size) {
        return false;
    }

    in.erase(0, size);

    return true;
}

}

}
