#pragma once

#include "kit.h"
#include "load.h"
#include "workload.h"

#include <functional>
#include <memory>
#include <optional>

namespace chaos {

/* How a request is sent. */
struct way {
    std::size_t instance = 0;
    long port = 0;
    bool http2 = false;
    bool via_proxy = false;
    bool is_right = true; /* which body of the key */
    std::string wish;
    double leave = -1; /* hang up after so many seconds; -1: do not */
    double odds = 0;   /* below 1: how to hang up */
    std::string phase;
};


struct told {
    int status = 0; /* 0: there was no answer */
    std::string code;
};


/*
 * One request and its line in the history, with the fields of Client.pm.  It
 * lives until the line is written: the loop's handlers hold it.
 */
class exchange : public std::enable_shared_from_this<exchange> {
public:
    using done = std::function<void(const told &)>;

    exchange(loop &events, line_file &history, const std::string &client);

    void start(const key &what, const way &how, done whenever);

private:
    void on_event(std::uint32_t events);
    void on_time();
    void hang_up();
    void note_left();
    void end(const std::string &error);
    void tell(bool is_whole);
    void finish(const told &result);
    void set_timer(double time, loop::action a);

    loop &loop_;
    line_file &history_;
    line line_;
    load::connection connection_;
    way how_;
    done done_;
    std::optional<loop::timers::iterator> timer_;
};

}
