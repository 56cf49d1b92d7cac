#include "contract/stage.h"

#include <catch2/catch.hpp>

#include <map>
#include <set>
#include <string>

using namespace idempotency;
using enum stage;

namespace {

using stages = std::set<stage>;

stage
stage_at(std::size_t i)
{
    return static_cast<stage>(i);
}


stages
reachable_from(stage from)
{
    stages found = {from};
    bool more = true;

    while (more) {
        more = false;

        for (stage s : stages(found)) {
            for (std::size_t i = 0; i < stage_count; i++) {
                if (is_legal_move(s, stage_at(i))) {
                    more = found.insert(stage_at(i)).second || more;
                }
            }
        }
    }

    return found;
}

}


TEST_CASE("stage: every move is in the table or refused")
{
    const std::map<stage, stages> legal = {
        {start, {reading, passed, refused, failed}},
        {reading, {ready, failed}},
        {ready, {claiming, parked, passed, refused, failed}},
        {claiming, {answered}},
        {answered, {parked, running, passed, replayed, refused}},
        {parked, {ready, answered}},
        {running, {settling}},
        {settling, {settled}},
        {refused, {refused}},
    };

    for (std::size_t i = 0; i < stage_count; i++) {
        for (std::size_t j = 0; j < stage_count; j++) {
            stage from = stage_at(i);
            auto row = legal.find(from);
            bool expected = row != legal.end()
                            && row->second.count(stage_at(j)) != 0;

            INFO(name_of(from) << " to " << name_of(stage_at(j)));
            CHECK(is_legal_move(from, stage_at(j)) == expected);
        }
    }
}


TEST_CASE("stage: what has ended stays ended")
{
    for (stage end : {settled, passed, replayed, refused, failed}) {
        CHECK(reachable_from(end) == stages{end});
    }
}


TEST_CASE("stage: a request runs only after the store has answered")
{
    for (std::size_t i = 0; i < stage_count; i++) {
        CHECK(is_legal_move(stage_at(i), running)
              == (stage_at(i) == answered));
    }

    CHECK(reachable_from(running) == stages{running, settling, settled});
}


TEST_CASE("stage: every stage can be reached and has a name of its own")
{
    stages all = reachable_from(start);
    std::set<std::string> names;

    for (std::size_t i = 0; i < stage_count; i++) {
        CHECK(all.count(stage_at(i)) == 1);
        names.emplace(name_of(stage_at(i)));
    }

    CHECK(names.size() == stage_count);
}
