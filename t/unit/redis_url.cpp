#include "store/redis_url.h"

#include <catch2/catch.hpp>

#include <string>

using namespace idempotency;

namespace {

/* All parts in one line; what is wrong, if something is. */
std::string
parts(std::string_view text)
{
    redis_url url;

    if (!is_redis_url(text)) {
        return "not ours";
    }

    const char *wrong = parse_redis_url(text, url);

    if (wrong != nullptr) {
        return wrong;
    }

    std::string out = url.tls ? "tls " : "";

    for (auto part : {url.user, url.password, url.host, url.path, url.db}) {
        out += part;
        out += '|';
    }

    if (url.kind == redis_kind::cluster) {
        out += "cluster";
    }

    if (url.kind == redis_kind::sentinel) {
        out += "sentinel ";
        out += url.service;
    }

    return out;
}

}


TEST_CASE("redis url: forms", "[redis]")
{
    CHECK(parts("redis://h") == "||h||0|");
    CHECK(parts("redis://h/") == "||h||0|");
    CHECK(parts("redis://h:1/15") == "||h:1||15|");
    CHECK(parts("redis://[::1]:1/2") == "||[::1]:1||2|");
    CHECK(parts("rediss://h") == "tls ||h||0|");
    CHECK(parts("redis://u:p@h") == "u|p|h||0|");
    CHECK(parts("redis://:p@h") == "|p|h||0|");
    CHECK(parts("redis://u:p:q@r@h") == "u|p:q@r|h||0|");
    CHECK(parts("redis://u:%4a%4A@h") == "u|%4a%4A|h||0|");
    CHECK(parts("redis://u:p/q@h/3") == "u|p/q|h||3|");
    CHECK(parts("redis+unix:/run/redis.sock") == "|||/run/redis.sock|0|");
    CHECK(parts("redis+unix:/s?db=7") == "|||/s|7|");
    CHECK(parts("redis+sentinel://a,b:1/m") == "||a,b:1||0|sentinel m");
    CHECK(parts("rediss+sentinel://u:p@a,[::1]:1/m/3")
          == "tls u|p|a,[::1]:1||3|sentinel m");
    CHECK(parts("redis+cluster://a,b:1") == "||a,b:1||0|cluster");
    CHECK(parts("rediss+cluster://u:p@a/") == "tls u|p|a||0|cluster");
}


TEST_CASE("redis url: what is wrong with it", "[redis]")
{
    using Catch::Contains;

    CHECK(parts("memory:64m") == "not ours");
    CHECK(parts("redis:/h") == "not ours");
    CHECK(parts("redis+sentinels://h/m") == "not ours");
    CHECK_THAT(parts("redis+cluster://h/0"), Contains("database 0 only"));
    CHECK_THAT(parts("redis+cluster://h/1"), Contains("database 0 only"));
    CHECK_THAT(parts("redis+cluster://"), Contains("no host"));
    CHECK_THAT(parts("redis://"), Contains("no host"));
    CHECK_THAT(parts("redis:///1"), Contains("no host"));
    CHECK_THAT(parts("redis://u@h"), Contains("user:password"));
    CHECK_THAT(parts("redis://u:@h"), Contains("password is empty"));
    CHECK_THAT(parts("redis://u:%zz@h"), Contains("hexadecimal"));
    CHECK_THAT(parts("redis://%4:p@h"), Contains("hexadecimal"));
    CHECK_THAT(parts("redis://u:p%2@h"), Contains("hexadecimal"));
    CHECK_THAT(parts("redis://h/x"), Contains("number of a database"));
    CHECK_THAT(parts("redis://h/1/2"), Contains("number of a database"));
    CHECK_THAT(parts("redis://h/123456"), Contains("number of a database"));
    CHECK_THAT(parts("redis+unix:s"), Contains("absolute"));
    CHECK_THAT(parts("redis+unix:/"), Contains("absolute"));
    CHECK_THAT(parts("redis+unix:/s?x=1"), Contains("?db="));
    CHECK_THAT(parts("redis+unix:/s?db="), Contains("?db="));
}
