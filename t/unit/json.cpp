#include "json_body.h"

#include <catch2/catch.hpp>

#include <set>

using namespace idempotency;
using namespace std::string_view_literals;

namespace {

std::string
canonical(std::string_view body, const json_rules &rules = {})
{
    json_parser parser;

    return json_digest(parser, body, rules);
}


/* The digest of a form that is known. */
std::string
digest_of(std::string_view form)
{
    hasher hash;
    digest d;

    hash.start("test");
    hash.bytes(form.data(), form.size());

    if (!hash.finish(d)) {
        return "failed";
    }

    return {d.begin(), d.end()};
}


std::string
repeated(std::string_view text, std::size_t count)
{
    std::string all;

    for (std::size_t i = 0; i < count; i++) {
        all += text;
    }

    return all;
}

}


/* Records outlive the module's version: these bytes may not change. */
TEST_CASE("json: the bytes that are hashed", "[json]")
{
    struct {
        std::string_view body;
        std::string_view form;
    } rows[] = {
        {"null", "n"},
        {"true", "t"},
        {" false ", "f"},
        {"0", "0;"},
        {"-0.0e5", "0;"},
        {"7", "7;"},
        {"-12", "-12;"},
        {"1200", "12e2;"},
        {"-1.50", "-15e-1;"},
        {"0.00120", "12e-4;"},
        {"1e400", "1e400;"},
        {"\"\"", "\x80"},
        {"\"abc\"", "\x83"
                    "abc"},
        {"[]", "[]"},
        {"[1,[],\"\"]", "[1;[]\x80]"},
        {"{}", "{}"},
        {"{\"b\":1,\"a\":[{\"d\":null,\"c\":\"x\"}]}", "{\x81"
                                                       "a[{\x81"
                                                       "c\x81"
                                                       "x\x81"
                                                       "dn}]\x81"
                                                       "b1;}"},
        {"{\"\":0}", "{\x80"
                     "0;}"},
    };

    for (const auto &row : rows) {
        INFO(row.body);
        CHECK(canonical(row.body) == digest_of(row.form));
    }

    std::string long_string(127, 'x');

    CHECK(canonical("\"" + long_string + "\"")
          == digest_of("\xff" + long_string));

    long_string += 'y';
    CHECK(canonical("\"" + long_string + "\"")
          == digest_of("s\x80" + std::string("\0\0\0", 3) + long_string));

    long_string += std::string(0x1234 - 128, 'z');
    CHECK(canonical("\"" + long_string + "\"")
          == digest_of("s\x34\x12" + std::string("\0\0", 2) + long_string));
}


/* All spellings in a row are one value; no two rows share one. */
TEST_CASE("json: same and different", "[json]")
{
    const std::vector<std::vector<std::string_view>> rows = {
        {"null", " null", "null ", "\t\r\nnull\n"},
        {"false"},
        {"true"},

        /* numbers */
        {"0", "-0", "0.0", "-0.00", "0e0", "0E+5", "0e999",
         "0e99999999999999999999999", "-0.000e-99999999999999999999"},
        {"1", "1.0", "1e0", "1E0", "1e+0", "1e-0", "10e-1", "0.1e1", "1.000",
         "1000e-3", "0.001e3", "1e00000000000000000000000000"},
        {"-1", "-1.0", "-10e-1"},
        {"2"},
        {"10", "1e1", "1E+1", "10.0", "0.1e2", "100e-1"},
        {"100", "1e2", "1.0e2", "1e+02"},
        {"0.1", "1e-1", "0.10", "0.01e1", "0.100"},
        {"0.01", "1e-2"},
        {"11", "1.1e1", "110e-1"},
        {"1.1", "11e-1", "1.10"},
        {"101", "1.01e2"},
        {"1001"},
        {"9007199254740992", "9007199254740992.0", "9.007199254740992e15"},
        {"9007199254740993", "9007199254740993.0", "9.007199254740993e15"},
        {"9223372036854775807"},
        {"9223372036854775808"},
        {"18446744073709551615"},
        {"18446744073709551616"},
        {"18446744073709551617"},
        {"-9223372036854775808"},
        {"-9223372036854775809"},
        {"123456789012345678901234567890123456789012345678901234567890"},
        {"123456789012345678901234567890123456789012345678901234567891"},
        {"1e400", "10e399", "0.1e401", "1000e397"},
        {"1e401"},
        {"-1e400"},
        {"1e-400", "0.1e-399"},
        {"1e308"},
        {"1.7976931348623157e308"},
        {"1.7976931348623158e308"},
        {"5e-324"},
        {"4e-324"},
        {"0.1000000000000000055511151231257827"},
        {"0.1000000000000000055511151231257828"},
        {"1e999999999999999999"},
        {"1e-999999999999999999"},

        /* strings */
        {"\"\"", " \"\" "},
        {"\" \"", "\"\\u0020\""},
        {"\"A\"", "\"\\u0041\""},
        {"\"a\"", "\"\\u0061\""},
        {"\"1\"", "\"\\u0031\""},
        {"\"0\""},
        {"\"null\"", "\"\\u006eull\"", "\"n\\u0075ll\""},
        {"\"true\""},
        {"\"[]\""},
        {"\"{}\""},
        {"\"/\"", "\"\\/\"", "\"\\u002f\"", "\"\\u002F\""},
        {"\"\\\\\"", "\"\\u005c\""},
        {"\"\\\"\"", "\"\\u0022\""},
        {"\"\\\\\\\"\"", "\"\\u005c\\u0022\""},
        {"\"\\b\"", "\"\\u0008\""},
        {"\"\\f\"", "\"\\u000c\"", "\"\\u000C\""},
        {"\"\\n\"", "\"\\u000a\""},
        {"\"\\r\"", "\"\\u000d\""},
        {"\"\\t\"", "\"\\u0009\""},
        {"\"\\u0000\""},
        {"\"\\u0000\\u0000\""},
        {"\"\x7f\"", "\"\\u007f\""},
        {"\"\xc2\x80\"", "\"\\u0080\""},
        {"\"\xdf\xbf\"", "\"\\u07ff\"", "\"\\u07FF\""},
        {"\"\xe0\xa0\x80\"", "\"\\u0800\""},
        {"\"\xed\x9f\xbf\"", "\"\\ud7ff\""},
        {"\"\xee\x80\x80\"", "\"\\ue000\""},
        {"\"\xef\xbf\xbf\"", "\"\\uffff\"", "\"\\uFFFF\""},
        {"\"\xf0\x90\x80\x80\"", "\"\\ud800\\udc00\""},
        {"\"\xf0\x9f\x98\x80\"", "\"\\ud83d\\ude00\"", "\"\\uD83D\\uDE00\""},
        {"\"\xf4\x8f\xbf\xbf\"", "\"\\udbff\\udfff\""},

        /* no normalisation: e with acute, and e and an acute */
        {"\"\xc3\xa9\"", "\"\\u00e9\""},
        {"\"e\xcc\x81\"", "\"e\\u0301\""},
        {"\"\xef\xbb\xbf\"", "\"\\ufeff\""},

        /* arrays */
        {"[]", "[ ]", " [\n] "},
        {"[[]]"},
        {"[[],[]]", "[ [ ] , [ ] ]"},
        {"[[[]]]"},
        {"[{}]"},
        {"[null]"},
        {"[null,null]"},
        {"[1]", "[1.0]"},
        {"[1,2]", "[1.0,20e-1]"},
        {"[2,1]"},
        {"[12]"},
        {"[[1],2]"},
        {"[[1,2]]"},
        {"[1,[2]]"},
        {"[\"1,2\"]"},
        {"[\"1\",\"2\"]"},
        {"[\"1\",2]"},
        {"[\"\"]"},
        {"[\"\",\"\"]"},

        /* objects */
        {"{}", "{ }"},
        {"{\"a\":1}", "{ \"a\" : 1 }", "{\"\\u0061\":1e0}"},
        {"{\"a\":2}"},
        {"{\"a\":null}"},
        {"{\"a\":\"1\"}"},
        {"{\"a\":[1]}"},
        {"{\"a\":{}}"},
        {"{\"a\":[]}"},
        {"{\"A\":1}"},
        {"{\"\":1}"},
        {"{\"\":\"\"}"},
        {"{\"b\":1}"},
        {"{\"a\":1,\"b\":2}", "{\"b\":2,\"a\":1}", "{\"\\u0062\":2,\"a\":1}"},
        {"{\"a\":2,\"b\":1}", "{\"b\":1,\"a\":2}"},
        {"{\"a\":1,\"b\":null}", "{\"b\":null,\"a\":1}"},
        {"{\"a\":{\"b\":1}}"},
        {"{\"a\":{\"b\":1,\"c\":2},\"d\":3}",
         "{\"d\":3,\"a\":{\"c\":2,\"b\":1}}",
         "{\"a\":{\"c\":2,\"b\":1},\"d\":3}"},
        {"{\"a\":{\"b\":1},\"c\":2,\"d\":3}"},
        {"{\"a\":{\"b\":1,\"c\":2,\"d\":3}}",
         "{\"a\":{\"d\":3,\"c\":2,\"b\":1}}"},
        {"[{\"a\":1},{\"b\":2}]"},
        {"[{\"b\":2},{\"a\":1}]"},
        {"[{\"a\":1,\"b\":2}]", "[{\"b\":2,\"a\":1}]"},
        {"[\"a\",1,\"b\",2]"},
        {"{\"a\":1,\"ab\":2}", "{\"ab\":2,\"a\":1}"},
        {"{\"a\":1,\"a\\u0000\":2}", "{\"a\\u0000\":2,\"a\":1}"},
        {"{\"a\\u0000\":1,\"a\":2}"},
        {"{\"\":1,\"\\u0000\":2}", "{\"\\u0000\":2,\"\":1}"},
        {"{\"12345678\":1,\"12345678a\":2,\"12345678\\u0000\":3}",
         "{\"12345678a\":2,\"12345678\":1,\"12345678\\u0000\":3}"},
        {"{\"\xc3\xa9\":1,\"z\":2}", "{\"z\":2,\"\\u00e9\":1}"},
        {"{\"\xf0\x90\x80\x80\":1,\"\xef\xbf\xbf\":2}",
         "{\"\\uffff\":2,\"\\ud800\\udc00\":1}"},
    };
    std::set<std::string> seen;

    for (const auto &row : rows) {
        std::string first = canonical(row.front());

        INFO(row.front());
        CHECK(first.size() == 32);
        CHECK(seen.insert(first).second);

        for (std::string_view other : row) {
            INFO(other);
            CHECK(canonical(other) == first);
        }
    }
}


TEST_CASE("json: a string and the length of it", "[json]")
{
    std::set<std::string> seen;

    /* through all lengths of the copies, and an escape at each place */

    for (std::size_t size = 0; size < 300; size++) {
        std::string text(size, 'x');
        std::string plain = canonical("\"" + text + "\"");

        CHECK(seen.insert(plain).second);

        for (std::size_t at = 0; at < size; at += size < 40 ? 1 : 13) {
            std::string escaped = text;
            std::string changed = text;

            escaped.replace(at, 1, "\\u0078");
            changed[at] = 'y';
            REQUIRE(canonical("\"" + escaped + "\"") == plain);
            REQUIRE(canonical("\"" + changed + "\"") != plain);
            REQUIRE(canonical("{\"" + escaped + "\":1}")
                    == canonical("{\"" + text + "\":1}"));
        }
    }
}


/* In order, out of order, in small objects and in large ones. */
TEST_CASE("json: names and the length of them", "[json]")
{
    for (std::size_t size = 1; size < 300; size += size < 140 ? 1 : 17) {
        std::string rest(size, 'x');
        std::string plain = "\xc3\xa9" + rest;
        std::string escaped = "\\u00e9" + rest;
        std::string expected = canonical("{\"a\":1,\"" + plain
                                         + "\":2,\"\xe0\xa0\x80\":3}");

        INFO(size);
        CHECK(expected.size() == 32);
        CHECK(canonical("{\"" + escaped + "\":2,\"\\u0800\":3,\"a\":1}")
              == expected);
        CHECK(canonical("{\"\\u0800\":3,\"" + plain + "\":2,\"a\":1}")
              == expected);
        CHECK(canonical("{\"a\":1,\"" + plain + "\":1,\"" + escaped + "\":2}")
              == "not json");
        CHECK(canonical("{\"" + escaped + "\":1,\"a\":1,\"" + plain + "\":2}")
              == "not json");
    }
}


TEST_CASE("json: objects of all sizes", "[json]")
{
    /* around the counts and sizes from which they are put in order later */

    for (int count = 1; count < 40; count++) {
        for (std::size_t size : {0, 5, 25, 31, 40, 60, 130, 600}) {
            std::string up;
            std::string down;

            for (int i = 0; i < count; i++) {
                std::string member = "\"common prefix ";

                member.erase(count % 2 ? 8 : 1, count % 2 ? 0 : 14);
                member += std::to_string(100 + i) + "\":{\"y\":\""
                          + std::string(size, static_cast<char>('a' + i % 26))
                          + "\",\"x\":" + std::to_string(i) + "}";
                up = up + (i ? "," : "") + member;
                down = member + (i ? "," : "") + down;
            }

            INFO(count << " of " << size);
            std::string expected = canonical("{" + up + "}");

            CHECK(expected.size() == 32);
            CHECK(canonical("{" + down + "}") == expected);
            CHECK(canonical("{\"z\":{" + down + "},\"a\":[{" + up + "}]}")
                  == canonical("{\"a\":[{" + down + "}],\"z\":{" + up + "}}"));
        }
    }
}


TEST_CASE("json: what comes behind the body does not matter", "[json]")
{
    json_parser parser;

    for (std::string_view body :
         {"12"sv, "1.5"sv, "1e5"sv, "\"ab\""sv, "true"sv, "{}"sv, "[[]]"sv,
          "[1,"sv, "\"ab"sv, "{\"a\":"sv, "-"sv, "[1"sv, "tru"sv})
    {
        INFO(body);
        std::string expected = json_digest(parser, body, {}, ' ');

        for (char filler : "0123456789e.,:]}[{\"\\ \n\0x\xff"sv) {
            CHECK(json_digest(parser, body, {}, filler) == expected);
        }
    }
}


TEST_CASE("json: depth", "[json]")
{
    auto nested = [](std::string_view open, std::string_view close,
                     std::size_t depth) {
        return repeated(open, depth) + repeated(close, depth);
    };

    CHECK(canonical(nested("[", "]", 512)).size() == 32);
    CHECK(canonical(nested("[", "]", 513)) == "not json");
    CHECK(canonical(nested("[", "]", 1000000)) == "not json");
    CHECK(canonical(repeated("[", 1000000)) == "not json");
    CHECK(canonical(repeated("{\"a\":", 1000000)) == "not json");
    CHECK(canonical(repeated("{\"a\":", 512) + "1" + repeated("}", 512)).size()
          == 32);
    CHECK(canonical(repeated("{\"a\":", 513) + "1" + repeated("}", 513))
          == "not json");
    CHECK(
        canonical(repeated("[{\"a\":", 256) + "1" + repeated("}]", 256)).size()
        == 32);
    CHECK(canonical(repeated("[{\"a\":", 256) + "[]" + repeated("}]", 256))
          == "not json");

    /* many side by side are not deep */
    CHECK(canonical("[" + repeated("[{}],", 10000) + "1]").size() == 32);

    /* the rules look no deeper */
    pointer_list every = {"/*"};
    json_rules rules;

    rules.exclude = every;
    CHECK(canonical(nested("[", "]", 513), rules) == "not json");
    rules.exclude = {};
    rules.include = every;
    CHECK(canonical(nested("[", "]", 513), rules) == "not json");
}


TEST_CASE("json: nested objects out of order", "[json]")
{
    /* each level has to be turned round: by moving all of it this is slow */
    std::string one = repeated("{\"b\":", 500);
    std::string other = repeated("{\"a\":1,\"b\":", 500);
    std::string inner = "\"" + std::string(1000000, 'x') + "\"";

    one += inner + repeated(",\"a\":1}", 500);
    other += inner + repeated("}", 500);

    CHECK(canonical(one) == canonical(other));
    CHECK(canonical(one).size() == 32);
}


TEST_CASE("json: many members", "[json]")
{
    std::string up = "{";
    std::string down = "{";
    std::string scattered = "{";
    constexpr int count = 50000;

    for (int i = 0; i < count; i++) {
        auto member = [](int n) {
            return "\"some longer name " + std::to_string(1000000 + n)
                   + "\":" + std::to_string(n);
        };

        up += (i ? "," : "") + member(i);
        down += (i ? "," : "") + member(count - 1 - i);
        scattered += (i ? "," : "")
                     + member(static_cast<int>(i * 7919LL % count));
    }

    std::string expected = canonical(up + "}");

    CHECK(expected.size() == 32);
    CHECK(canonical(down + "}") == expected);
    CHECK(canonical(scattered + "}") == expected);
    CHECK(canonical(scattered + ",\"some longer name 1000017\":17}")
          == "not json");
    CHECK(canonical(up + ",\"some longer name 1049999\":17}") == "not json");
    CHECK(canonical(up + ",\"\":17}") != expected);
}


TEST_CASE("json: memory", "[json]")
{
    json_parser parser;

    CHECK(parser.memory() == 0);
    CHECK(json_digest(parser, "{\"b\":1,\"a\":2}").size() == 32);

    std::size_t small = parser.memory();

    CHECK(small > 0);
    CHECK(small < 4096);

    SECTION("stays where it is enough")
    {
        json_digest(parser, "{\"c\":1,\"b\":2}");
        CHECK(parser.memory() == small);
    }

    SECTION("is kept up to a megabyte")
    {
        std::string body = "[" + repeated("{\"id\":123,\"at\":\"x\"},", 50000);

        body.back() = ']';
        CHECK(body.size() < 1024 * 1024);
        CHECK(body.size() > 900 * 1024);
        CHECK(json_digest(parser, body).size() == 32);
        CHECK(parser.memory() > body.size());
        CHECK(parser.memory() <= json_keep);
    }

    SECTION("is a small multiple of the body")
    {
        std::string reversed;
        std::string seventeen;

        for (int i = 20000; i > 0; i--) {
            std::string name = {static_cast<char>('0' + i / 1936),
                                static_cast<char>('0' + i / 44 % 44),
                                static_cast<char>('0' + i % 44)};

            reversed += "\"" + name + "\":1,";
        }
        for (char c = 'q'; c >= 'a'; c--) {
            seventeen += std::string("\"") + c + "\":1" + (c > 'a' ? "," : "");
        }

        const std::string bodies[] = {
            "{" + reversed + "\"\":1}",
            "[" + repeated("{" + seventeen + "},", 1000) + "1]",
            "[" + repeated("{\"b\":1,\"a\":{}},", 10000) + "1]",
            "[" + repeated("{},", 40000) + "1]",
            "[" + repeated("1.5,", 40000) + "1]",
            "[" + repeated("[[[]]],", 10000) + "1]",
            "[" + repeated("\"\",", 40000) + "1]",
        };

        for (const std::string &body : bodies) {
            json_parser fresh;

            INFO(body.substr(0, 40));
            CHECK(json_digest(fresh, body).size() == 32);
            CHECK(fresh.memory() <= 16 * body.size());
            CHECK(fresh.memory() > 0);
        }
    }

    SECTION("is given back beyond, whatever the result")
    {
        std::string body(3 * 1024 * 1024, ' ');

        for (std::string_view end : {"1", "[", ""}) {
            json_digest(parser, body + std::string(end));
            CHECK(parser.memory() == 0);
            CHECK(json_digest(parser, "{\"b\":1,\"a\":2}").size() == 32);
        }
    }
}


/* What takes more room in the form than in the text, then one long token. */
TEST_CASE("json: forms longer than their text", "[json]")
{
    const std::string numbers = "[" + repeated("1.5,", 1000);
    const std::string others = "[" + repeated("15e-1,", 1000);

    for (std::size_t size = 1200; size < 2000; size += 7) {
        std::string x(size, 'x');
        std::string digits = "1." + std::string(size, '7');

        INFO(size);
        CHECK(canonical(numbers + "\"" + x + "\"]")
              == canonical(others + "\"" + x + "\"]"));
        CHECK(canonical(numbers + "\"\\u0078" + x + "\"]")
              == canonical(others + "\"x" + x + "\"]"));
        CHECK(canonical(numbers + digits + "]")
              == canonical(others + digits + "e0]"));
        CHECK(canonical(numbers + "{\"" + x + "\":1}]")
              == canonical(others + "{\"" + x + "\":1}]"));
        CHECK(canonical(numbers + "1]").size() == 32);
    }
}


TEST_CASE("json: a parser is as good as new after each document", "[json]")
{
    json_parser used;
    const std::string_view bodies[] = {"{\"b\":1,\"a\":2}",
                                       "{\"b\":1,\"a\":",
                                       "[[[",
                                       "{\"b\":1,\"b\":1}",
                                       "[1,2,{\"z\":1,\"y\":{\"x\":1,\"w\":",
                                       "\"\\ud800\"",
                                       "",
                                       "{\"a\":{\"d\":1,\"c\":1},\"A\":1}",
                                       "[\"\xff\"]",
                                       "5"};

    for (std::string_view before : bodies) {
        for (std::string_view body : bodies) {
            json_digest(used, before);
            CHECK(json_digest(used, body) == canonical(body));
        }
    }
}


/* What is remembered of the order of names is of use for just these names. */
TEST_CASE("json: objects like those before", "[json]")
{
    json_parser used;

    for (int i = 0; i < 300; i++) {
        std::string first = "{\"x" + std::to_string(i) + "\":1";
        const std::string bodies[] = {
            first + ",\"b\":2,\"a\":3}", first + ",\"b\":2}",
            first + ",\"a\":2,\"b\":3}", first + ",\"b\":2,\"a\":3,\"z\":4}",
            first + ",\"b\":2,\"z\":3}", first + ",\"b\":2,\"b\":3}",
        };

        for (const std::string &before : bodies) {
            for (const std::string &body : bodies) {
                json_digest(used, before);
                REQUIRE(json_digest(used, body) == canonical(body));
            }
        }
    }
}


TEST_CASE("json: nothing is hashed of what is no JSON", "[json]")
{
    json_parser parser;
    hasher hash;
    hasher fresh;
    digest d;
    digest expected;

    hash.start("a");
    fresh.start("a");

    for (std::string_view text : {"", "[1,2", "{\"b\":1,\"a\":2,\"b\":3}"}) {
        json_body body(text);
        CHECK(canonical_json(parser, body.view(), {}, hash)
              == json_result::not_json);
    }

    REQUIRE(hash.finish(d));
    REQUIRE(fresh.finish(expected));
    CHECK(d == expected);
}
