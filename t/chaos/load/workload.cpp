#include "workload.h"

#include "kit.h"
#include "load.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <sstream>

namespace chaos {

namespace {

/*
 * Runs that are over at once, beside those of Workload.pm: if all took as long
 * as those do, thousands would be under way.
 */
constexpr double short_share = 0.7;

/* As @ODD_BODIES in Workload.pm: how the last string of a body ends. */
constexpr std::size_t odd_ends = 4;

const char *odd_end(std::size_t number);

}


void
workload::add_route(const std::string &text)
{
    std::istringstream words(text);
    std::string name, share, unknown, where, type;

    std::getline(words, name, ':');
    std::getline(words, share, ':');
    std::getline(words, unknown, ':');
    std::getline(words, where, ':');
    std::getline(words, type, ':');

    if (where.empty()) {
        load::fail("not NAME:SHARE:UNKNOWN:WHERE:TYPE: " + text);
    }

    routes_.push_back({name, std::stoi(share), unknown == "release",
                       where == "local", type});

    /* As in Workload.pm, sorted by name. */
    std::sort(routes_.begin(), routes_.end(),
              [](auto &a, auto &b) { return a.name < b.name; });
    wheel_.clear();

    for (std::size_t i = 0; i < routes_.size(); ++i) {
        wheel_.insert(wheel_.end(), static_cast<std::size_t>(routes_[i].share),
                      i);
    }
}


void
workload::set_times(double lease, double read_timeout)
{
    lease_ = lease;
    read_timeout_ = read_timeout;
}


void
workload::seed(const std::string &text)
{
    random_.seed(dice(text));
}


key
workload::key_of(long number) const
{
    std::string text = std::to_string(number);
    auto &r = routes_[wheel_[dice("route " + text) % wheel_.size()]];

    return {r.name + "-" + text, r};
}


/* The name of a key begins with its route. */
key
workload::key_of(const std::string &name) const
{
    for (auto &r : routes_) {
        if (name.starts_with(r.name + "-")) {
            return {name, r};
        }
    }

    load::fail("no route for the key " + name);
}


std::string
key::body(bool is_right) const
{
    std::string note(dice("length " + name) % 3000, 'x');

    note.append(odd_end(dice("odd " + name) % (4 * odd_ends)));

    return std::string(dice("mark " + name) % 20 ? "" : "\xEF\xBB\xBF")
           + "{\"order\":\"" + name + "\",\"kind\":\""
           + (is_right ? "right" : "other") + "\",\"note\":\"" + note + "}";
}


std::string
key::type() const
{
    return !where.type.empty()        ? where.type
           : dice("type " + name) % 2 ? "application/json"
                                      : "";
}


double
workload::random(double limit)
{
    return std::uniform_real_distribution<double>(0, limit)(random_);
}


std::string
workload::wish(const route &r)
{
    std::map<std::string, std::string> wishes;
    char seconds[32];
    double odds = random();

    std::snprintf(seconds, sizeof(seconds), "%.3f",
                  random() < short_share ? random(0.03)
                  : r.releases           ? long_duration()
                                         : duration());
    wishes["sleep"] = seconds;
    wishes["size"] = std::to_string(size());

    if (random() < 0.3) {
        wishes["chunked"] = "1";
    }

    if (random() < 0.2) {
        wishes["pieces"] = "4";
    }

    if (odds < 0.07) {
        wishes["refuse"] = any_of({"400", "409", "422", "429", "500", "503"});
    } else if (odds < 0.08) {
        wishes["refuse"] = "word";
    } else if (odds < 0.11) {
        wishes["die"] = "executed";
    } else if (odds < 0.13) {
        wishes["die"] = "unread";
    } else if (odds < 0.15) {
        wishes["die"] = "header";
    } else if (odds < 0.17) {
        wishes["die"] = "body";
    } else if (odds < 0.18) {
        wishes["status"] = any_of({"502", "504"});
    } else if (odds < 0.19) {
        wishes["discard"] = "1";
    }

    if (wishes.contains("die") && random() < 0.5) {
        wishes["rst"] = "1";
    }

    std::string text;

    for (auto &[name, value] : wishes) {
        text += (text.empty() ? "" : "&") + name + "=" + value;
    }

    return text;
}


double
workload::duration()
{
    double odds = random();

    return odds < 0.40   ? random(0.03)
           : odds < 0.65 ? 0.05 + random(0.4)
           : odds < 0.80 ? 0.4 + random(0.8)
           : odds < 0.99 ? lease_ + random(2)
                         : read_timeout_ + 0.5;
}


double
workload::long_duration()
{
    return random() < 0.6 ? 0.3 + random(2.7) : duration();
}


/* Less than in Workload.pm: the store has to hold forty times as many, and a
   worker what it has to put back. */
long
workload::size()
{
    return static_cast<long>(random() < 0.995 ? random(600) : random(60'000));
}


const char *
workload::any_of(std::initializer_list<const char *> list)
{
    return list.begin()[static_cast<std::size_t>(
        random(static_cast<double>(list.size())))];
}


namespace {

const char *
odd_end(std::size_t number)
{
    switch (number) {

    case 0: return " \\ud83d\"";

    case 1: return "\",\"note\":\"twice\"";

    case 2: return " \xFF\"";

    case 3: return "\",\"sum\":1e9999999999999999999";

    default: return "\"";
    }
}

}

}
