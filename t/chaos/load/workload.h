#pragma once

#include <random>
#include <string>
#include <vector>

/*
 * What the fast clients ask for.  Keys and bodies are those of Workload.pm, so
 * that the clients in Perl can ask for the same ones; what is asked of the
 * application has the same odds, but for more runs that are short.
 */

namespace chaos {

struct route {
    std::string name;
    int share;        /* how many of all keys */
    bool releases;    /* an unknown outcome is released */
    bool is_local;    /* its records are in the memory of one nginx */
    std::string type; /* of all requests; empty: it follows from the key */
};


struct key {
    std::string name;
    route where;

    std::string body(bool is_right) const;

    /* Its Content-Type, if it has one. */
    std::string type() const;
};


class workload {
public:
    /* Routes as NAME:SHARE:hold|release:shared|local:TYPE, with the
       Content-Type of all their requests or none. */
    void add_route(const std::string &text);

    /* In seconds. */
    void set_times(double lease, double read_timeout);

    void seed(const std::string &text);

    key key_of(long number) const;
    key key_of(const std::string &name) const;

    /* How the application is to run the request. */
    std::string wish(const route &r);

    /* From 0, excluding the limit. */
    double random(double limit = 1);

private:
    double duration();
    double long_duration();
    long size();
    const char *any_of(std::initializer_list<const char *> list);

    std::vector<route> routes_;
    std::vector<std::size_t> wheel_;
    double lease_ = 1;
    double read_timeout_ = 4;
    std::mt19937_64 random_;
};

}
