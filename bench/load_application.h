#pragma once

#include <map>
#include <string>

/* The application that the gateways stand before, see load.cpp. */

namespace load {

class application {
public:
    long executions = 0;

    /* Answers with so many bytes. */
    application(long port, long size);

    int socket() const { return socket_; }

    /* The connection's socket. */
    int accept_one();

    /* Answers what has come on a connection. */
    void serve(int connection);

private:
    int socket_ = -1;
    std::string answer_;
    std::map<int, std::string> in_; /* by connection */
};

}
