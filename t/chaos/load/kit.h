#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

/* What the fast clients and the fast application have in common. */

namespace chaos {

/* Seconds of the monotonic clock, as in Lines.pm. */
double now();

std::string sha1_hex(std::string_view bytes);

/* As dice() of Workload.pm: the same number for the same text. */
std::uint32_t dice(const std::string &text);


/* A line of a ledger or a history, as field_text() of Lines.pm writes it. */
class line {
public:
    /* An empty value is left out. */
    void set(std::string_view name, std::string_view value);
    void set_time(std::string_view name, double seconds);

    std::string text() const;

private:
    std::map<std::string, std::string, std::less<>> fields_;
};


class line_file {
public:
    explicit line_file(const std::string &path);

    /* With one write, as others append too. */
    void append(const line &l);

private:
    int file_;
};


/* Words like --name value; a name may come several times. */
class arguments {
public:
    arguments(int count, char **words);

    std::string text(const std::string &name) const;
    double number(const std::string &name, double otherwise) const;
    auto all(const std::string &name) const
    {
        return by_name_.equal_range(name);
    }

private:
    std::multimap<std::string, std::string> by_name_;
};


/* Sockets and timers of a program with one thread. */
class loop {
public:
    using handler = std::function<void(std::uint32_t events)>;
    using action = std::function<void()>;
    using timers = std::multimap<double, action>;

    loop();

    /* The handler is called for these events until forget(). */
    void watch(int socket, std::uint32_t events, handler h);
    void change(int socket, std::uint32_t events);
    void forget(int socket);

    timers::iterator at(double time, action a);
    void cancel(timers::iterator timer) { timers_.erase(timer); }

    /* Waits for the next events or timers, until then at most. */
    void step(double until);

private:
    struct watched {
        std::uint32_t number; /* tells the sockets of a descriptor apart */
        handler handle;
    };

    void run_timers();

    int poll_;
    std::uint32_t last_number_ = 0;
    std::unordered_map<int, watched> watched_;
    timers timers_;
};

}
