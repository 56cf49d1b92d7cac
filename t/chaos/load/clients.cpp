#include "exchange.h"
#include "kit.h"
#include "workload.h"

#include <cmath>
#include <deque>
#include <fstream>
#include <set>
#include <sstream>

#include <unistd.h>

/*
 * The clients of Client.pm in one process, for loads that those are too slow
 * for.  The history that it writes has the same fields.
 *
 *     clients --history FILE --name f1 --parent PID --store shared|local
 *         --route hold:18:hold:shared: ... --instance H1:H2:LINK_H1:LINK_H2
 * ...
 *         --lease 1 --read-timeout 4 and either
 *
 *     --seed S --began T --until T --rate 1000    so many new keys a second
 *     --via-proxy 0.03       the share of requests that take the bad network
 *     --limit 1200           requests under way at once, at most
 *
 *     --probe FILE           ask for each key in it, until its state is clear
 *     --seconds 8            or for so long
 */

using namespace chaos;

namespace {

struct ports {
    long h1, h2, link_h1, link_h2;
};


class clients {
public:
    explicit clients(const arguments &given);

    void load();
    void probe();

private:
    struct probed {
        key what;
        double until;
        bool is_right = true;
    };

    void bring_up_keys();
    void bring_up(const key &what, double elapsed);
    void ask_at(double time, const key &what);
    void ask(const key &what);
    void begin(const key &what);
    void ask_again(const key &what);

    void probe_next(std::deque<std::string> &names, double seconds);
    void probe_once(std::deque<std::string> &names, double seconds,
                    std::shared_ptr<probed> one);

    way choose(const key &what);
    std::size_t instance_for(const key &what);
    bool has_parent() const { return getppid() == parent_; }

    loop loop_;
    workload work_;
    line_file history_;
    std::string name_;
    std::vector<ports> instances_;
    pid_t parent_;
    bool is_shared_;
    std::string probe_file_;
    double probe_seconds_;

    double began_, until_, rate_, via_proxy_;
    std::size_t limit_, under_way_ = 0;
    long next_key_ = 0;
    std::deque<key> waiting_; /* for their turn */
};


ports ports_of(const std::string &text);

}


int
main(int count, char **words)
{
    arguments given(count, words);
    clients all(given);

    if (given.text("probe").empty()) {
        all.load();
    } else {
        all.probe();
    }

    return 0;
}


namespace {

clients::clients(const arguments &given)
    : history_(given.text("history")), name_(given.text("name")),
      parent_(static_cast<pid_t>(given.number("parent", getppid()))),
      is_shared_(given.text("store") == "shared"),
      probe_file_(given.text("probe")),
      probe_seconds_(given.number("seconds", 8)),
      began_(given.number("began", now())), until_(given.number("until", 0)),
      rate_(given.number("rate", 1000)),
      via_proxy_(given.number("via-proxy", 0.03)),
      limit_(static_cast<std::size_t>(given.number("limit", 1200)))
{
    auto routes = given.all("route");
    auto instances = given.all("instance");

    for (auto each = routes.first; each != routes.second; ++each) {
        work_.add_route(each->second);
    }

    for (auto each = instances.first; each != instances.second; ++each) {
        instances_.push_back(ports_of(each->second));
    }

    work_.set_times(given.number("lease", 1), given.number("read-timeout", 4));
    work_.seed(given.text("seed") + " client " + name_);
}


/* What is under way at the end has so long to end: a request is not patient
   for longer. */
void
clients::load()
{
    while (now() < until_ && has_parent()) {
        bring_up_keys();
        loop_.step(std::min(until_, now() + 0.01));
    }

    waiting_.clear();

    while (under_way_ > 0 && now() < until_ + 10 && has_parent()) {
        loop_.step(now() + 0.1);
    }
}


void
clients::bring_up_keys()
{
    double elapsed = now() - began_;

    while (static_cast<double>(next_key_) < elapsed * rate_) {
        bring_up(work_.key_of(next_key_++), elapsed);
    }
}


/*
 * A key is asked for when it comes up.  A quarter is also asked for by others,
 * mostly while it may still run, and sometimes long after that.
 */
void
clients::bring_up(const key &what, double elapsed)
{
    ask(what);

    double others = work_.random();

    for (int left = others < 0.75  ? 0
                    : others < 0.9 ? 1
                                   : 2;
         left > 0; --left) {
        double odds = work_.random();

        ask_at(now()
                   + work_.random(odds < 0.75   ? 2.5
                                  : odds < 0.92 ? 8
                                                : until_ - began_ - elapsed),
               what);
    }
}


void
clients::ask_at(double time, const key &what)
{
    loop_.at(time, [this, what] { ask(what); });
}


void
clients::ask(const key &what)
{
    if (now() >= until_) {
        return;
    }

    if (under_way_ < limit_) {
        begin(what);
    } else {
        waiting_.push_back(what);
    }
}


void
clients::begin(const key &what)
{
    auto one = std::make_shared<exchange>(loop_, history_, name_);

    ++under_way_;
    one->start(what, choose(what), [this, what](const told &) {
        --under_way_;
        ask_again(what);

        if (!waiting_.empty()) {
            key next = waiting_.front();

            waiting_.pop_front();
            loop_.at(0, [this, next] { ask(next); });
        }
    });
}


/* Many ask again, whatever they were told. */
void
clients::ask_again(const key &what)
{
    if (work_.random() < 0.4) {
        ask_at(now() - 0.1 * std::log(1 - work_.random(0.99)), what);
    }
}


way
clients::choose(const key &what)
{
    way how;

    how.instance = instance_for(what);
    how.http2 = work_.random() < 0.25;
    how.via_proxy = work_.random() < via_proxy_;
    how.is_right = work_.random() >= 0.08;
    how.wish = work_.wish(what.where);
    how.phase = "load";

    if (work_.random() < 0.2) {
        how.leave = work_.random(work_.random() < 0.5 ? 0.02 : 0.6);
        how.odds = work_.random();
    }

    const ports &p = instances_[how.instance];

    how.port = how.via_proxy ? (how.http2 ? p.link_h2 : p.link_h1)
               : how.http2   ? p.h2
                             : p.h1;

    return how;
}


/* As in Site.pm: where an nginx remembers, a key belongs to that one. */
std::size_t
clients::instance_for(const key &what)
{
    if (is_shared_ && !what.where.is_local) {
        return static_cast<std::size_t>(
            work_.random(static_cast<double>(instances_.size())));
    }

    return dice("instance " + what.name) % instances_.size();
}


void
clients::probe()
{
    constexpr int at_once = 100;
    std::ifstream file(probe_file_);
    std::deque<std::string> names;

    for (std::string name; std::getline(file, name);) {
        names.push_back(name);
    }

    for (int i = 0; i < at_once; ++i) {
        probe_next(names, probe_seconds_);
    }

    while (under_way_ > 0 && has_parent()) {
        loop_.step(now() + 0.1);
    }
}


void
clients::probe_next(std::deque<std::string> &names, double seconds)
{
    if (names.empty()) {
        return;
    }

    auto one = std::make_shared<probed>(
        probed{work_.key_of(names.front()), now() + seconds});

    names.pop_front();
    ++under_way_;
    probe_once(names, seconds, one);
}


/* As probe() of Client.pm. */
void
clients::probe_once(std::deque<std::string> &names, double seconds,
                    std::shared_ptr<probed> one)
{
    static const std::set<std::string> unclear = {"key_reused", "in_progress",
                                                  "store_unavailable"};

    way how;

    how.instance = instance_for(one->what);
    how.port = instances_[how.instance].h1;
    how.is_right = one->is_right;
    how.wish = "size=50";
    how.phase = "probe";

    auto asked = std::make_shared<exchange>(loop_, history_, name_);

    asked->start(one->what, how, [=, this, &names](const told &got) {
        /* The key stands for the other body, then. */
        if (got.code == "key_reused") {
            one->is_right = !one->is_right;
        }

        if (now() > one->until || (got.status && !unclear.contains(got.code)))
        {
            --under_way_;
            loop_.at(0, [=, this, &names] { probe_next(names, seconds); });
            return;
        }

        loop_.at(now() + 0.1,
                 [=, this, &names] { probe_once(names, seconds, one); });
    });
}


ports
ports_of(const std::string &text)
{
    std::istringstream words(text);
    ports p;
    char colon;

    words >> p.h1 >> colon >> p.h2 >> colon >> p.link_h1 >> colon >> p.link_h2;

    if (!words) {
        load::fail("not H1:H2:LINK_H1:LINK_H2: " + text);
    }

    return p;
}

}
