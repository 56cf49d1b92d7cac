#include "contract/json_finder.h"

#include "json_body.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

using namespace idempotency;

namespace {

constexpr std::size_t out_size = 20;

/*
 * What a text has at a pointer: the text of a string in quotes, the first byte
 * of another value, or a word for what it has not.  The text is fed in pieces
 * of this size, each in memory of just its size, and the rooms are as short as
 * they may be.
 */
std::string
found(std::string_view body, const char *pointer, std::size_t piece)
{
    pointer_list pointers = {pointer};
    std::size_t longest = out_size;
    json_target target;

    for (std::string_view segment : pointers[0].segments) {
        longest = std::max(longest, segment.size());
    }

    std::unique_ptr<char[]> out(new char[out_size]);
    std::size_t room = json_finder::room_for(longest);
    std::unique_ptr<char[]> token(new char[room]);

    target.pointer = pointers[0];
    target.out = {out.get(), out_size};

    json_finder finder({&target, 1}, {token.get(), room});

    for (std::size_t i = 0; i < body.size(); i += piece) {
        std::string_view part = body.substr(i, piece);
        std::vector<char> memory(part.begin(), part.end());

        finder.feed({memory.data(), memory.size()});
    }

    json_text text = finder.finish();

    switch (target.found) {
    case json_target::result::repeated: return "repeated";

    case json_target::result::found:
        if (target.first != '"') {
            return {target.first};
        }

        return target.readable ? '"' + std::string(target.text) + '"'
                               : "unreadable";

    default: break;
    }

    return text == json_text::complete ? "absent"
           : text == json_text::empty  ? "empty"
                                       : "broken";
}

}


TEST_CASE("json finder: what is at a pointer", "[json_finder]")
{
    const std::string deep(100000, '[');
    const std::string deep_end(100000, ']');

    struct {
        std::string body;
        const char *pointer;
        const char *expected;
    } rows[] = {
        {R"({"key":"abc"})", "/key", "\"abc\""},
        {R"({"key":""})", "/key", "\"\""},
        {R"({"a":1,"key":"a\u0062\n\"","b":2})", "/key", "\"ab\n\"\""},
        {R"({"params":{"arguments":{"x":[],"idempotencyKey":"k-1"}}})",
         "/params/arguments/idempotencyKey", "\"k-1\""},
        {R"([{"k":"a"},{"k":"b"}])", "/1/k", "\"b\""},
        {R"([[{"k":"a"},[],{"k":"b"}],[[],{"k":"c"}],"x"])", "/1/1/k",
         "\"c\""},
        {R"([[{"k":"a"}],{"k":"b"},"x"])", "/2", "\"x\""},
        {R"([["a",["b","c"],"d"],"e"])", "/0/2", "\"d\""},
        {R"([0,1,2,3,4,5,6,7,8,9,"x"])", "/10", "\"x\""},
        {R"({"0":"x"})", "/0", "\"x\""},
        {R"({"z":{"k":"v"},"a":{"k":"w"}})", "/z/k", "\"v\""},
        {R"({"a/b":{"c~d":"v"}})", "/a~1b/c~0d", "\"v\""},
        {R"({"\u006bey":"v"})", "/key", "\"v\""},
        {"{\"\\u00e9\\ud83d\\ude00\":\"v\"}", "/\xc3\xa9\xf0\x9f\x98\x80",
         "\"v\""},
        {R"({"key":"12345678901234567890"})", "/key",
         "\"12345678901234567890\""},
        {R"({"key":"123456789012345678901"})", "/key", "unreadable"},
        {R"({"key":"1234567890123456789\u00e9"})", "/key", "unreadable"},
        {R"({"key":1})", "/key", "1"},
        {R"({"key":-0.5e+3})", "/key", "-"},
        {R"({"key":null})", "/key", "n"},
        {R"({"key":true})", "/key", "t"},
        {R"({"key":["a"]})", "/key", "["},
        {R"({"key":{"a":"b"}})", "/key", "{"},
        {" \t\r\n{ \t\"key\" : \"v\" , \"b\" : [ ] , \"c\" : { } } \n", "/key",
         "\"v\""},

        {R"({"Key":"a"})", "/key", "absent"},
        {R"({"ke":"a","keys":"b","":"c"})", "/key", "absent"},
        {R"({})", "/key", "absent"},
        {R"([])", "/0", "absent"},
        {R"("key")", "/key", "absent"},
        {R"(12)", "/key", "absent"},
        {R"(-1.5E-3)", "/key", "absent"},
        {R"(null)", "/key", "absent"},
        {R"(["key"])", "/key", "absent"},
        {R"({"key":"a"})", "/key/0", "absent"},
        {R"({"a":{"key":"a"}})", "/key", "absent"},
        {R"(["a"])", "/00", "absent"},
        {R"(["a"])", "/1", "absent"},
        {R"(["a"])", "/-", "absent"},
        {R"({"*":"a"})", "/*", "\"a\""},
        {R"({"b":"a"})", "/*", "absent"},

        {"\xef\xbb\xbf{\"key\":\"v\"}", "/key", "\"v\""},
        {"{\"a\":\"\xff\xc3\",\"key\":\"v\"}", "/key", "\"v\""},
        {"{\"\xff\":1,\"key\":\"v\"}", "/key", "\"v\""},
        {R"({"a":"cut \ud83d","key":"v"})", "/key", "\"v\""},
        {R"({"a":"\udc00\ud800","\ud800":1,"key":"v"})", "/key", "\"v\""},
        {R"({"a":1e1234567890123456789,"key":"v"})", "/key", "\"v\""},
        {"{\"a\":" + std::string(5000, '9') + ",\"key\":\"v\"}", "/key",
         "\"v\""},
        {R"({"x":1,"key":"v","x":{"y":1,"y":2}})", "/key", "\"v\""},
        {R"({"x":{"key":1,"key":2},"key":"v"})", "/key", "\"v\""},
        {R"({"a":{"key":"v"},"b":{"a":1,"a":{"key":1}}})", "/a/key", "\"v\""},
        {"{\"a\":" + deep + deep_end + ",\"key\":\"v\"}", "/key", "\"v\""},
        {"{\"key\":\"v\",\"a\":" + deep, "/key", "\"v\""},
        {R"({"key":"\ud83d"})", "/key", "unreadable"},
        {"{\"key\":\"\xff\"}", "/key", "\"\xff\""},

        {R"({"key":"a","key":"a"})", "/key", "repeated"},
        {R"({"key":"a","\u006bey":"b"})", "/key", "repeated"},
        {R"({"key":1,"key":"b"})", "/key", "repeated"},
        {R"({"a":{"key":"v"},"a":1})", "/a/key", "repeated"},
        {R"({"a":1,"a":{"key":"v"}})", "/a/key", "repeated"},
        {R"({"a":{},"a":{"key":"v"}})", "/a/key", "repeated"},
        {R"({"a":{"key":"v","x":2,"key":"v"}})", "/a/key", "repeated"},
        {R"({"a":[{"key":"v","key":"v"}]})", "/a/0/key", "repeated"},

        {R"({"key":"a")", "/key", "\"a\""},
        {R"({"key":"a",)", "/key", "\"a\""},
        {R"({"key":"a","b":tru})", "/key", "\"a\""},
        {R"({"key":"a"}})", "/key", "\"a\""},
        {R"({"key":"a"} x)", "/key", "\"a\""},
        {R"({"key":"a",'b':1})", "/key", "\"a\""},
        {R"({"key":"a" "key":"b"})", "/key", "\"a\""},

        {"", "/key", "empty"},
        {" ", "/key", "broken"},
        {"\xef\xbb\xbf", "/key", "broken"},
        {"\xef\xbb", "/key", "broken"},
        {"\xef\xbb{\"key\":\"v\"}", "/key", "broken"},
        {" \xef\xbb\xbf{\"key\":\"v\"}", "/key", "broken"},
        {R"({"key":"a)", "/key", "broken"},
        {R"({"key":)", "/key", "broken"},
        {R"({"key")", "/key", "broken"},
        {R"({"a":1)", "/key", "broken"},
        {R"({"a":1,)", "/key", "broken"},
        {R"({"a":1]"key":"a"})", "/key", "broken"},
        {R"({"a":[1},"key":"a"})", "/key", "broken"},
        {R"({"a":1,,"key":"a"})", "/key", "broken"},
        {R"({"a":1,"key":"a"}x)", "/b", "broken"},
        {R"({"a" 1,"key":"a"})", "/key", "broken"},
        {R"({a:1,"key":"a"})", "/key", "broken"},
        {R"({"a":01,"key":"a"})", "/key", "broken"},
        {R"({"a":1.,"key":"a"})", "/key", "broken"},
        {R"({"a":.5,"key":"a"})", "/key", "broken"},
        {R"({"a":+1,"key":"a"})", "/key", "broken"},
        {R"({"a":-,"key":"a"})", "/key", "broken"},
        {R"({"a":1e,"key":"a"})", "/key", "broken"},
        {R"({"a":1e+,"key":"a"})", "/key", "broken"},
        {R"({"a":NaN,"key":"a"})", "/key", "broken"},
        {R"({"a":nul,"key":"a"})", "/key", "broken"},
        {R"({"a":nullx,"key":"a"})", "/key", "broken"},
        {R"({"a":"\x","key":"a"})", "/key", "broken"},
        {R"({"a":"\u12g4","key":"a"})", "/key", "broken"},
        {"{\"a\":\"\n\",\"key\":\"a\"}", "/key", "broken"},
        {R"({/**/"key":"a"})", "/key", "broken"},
        {R"(key=abc)", "/key", "broken"},
        {std::string("{\0\"key\":\"a\"}", 12), "/key", "broken"},
        {"-", "/key", "broken"},
        {"1.", "/key", "broken"},
        {"{}{}", "/key", "broken"},
        {deep, "/key", "broken"},
    };

    for (const auto &row : rows) {
        INFO(row.body.substr(0, 200));
        INFO(row.pointer);
        CHECK(found(row.body, row.pointer, row.body.size() + 1)
              == row.expected);
        CHECK(found(row.body, row.pointer, 1) == row.expected);
        CHECK(found(row.body, row.pointer, 7) == row.expected);
    }
}


TEST_CASE("json finder: several pointers in one text", "[json_finder]")
{
    std::string body = R"( {"a":{"b":[1,{"c":"x"},3]},"d":12.5 ,"e":[]})";
    pointer_list pointers = {"/a", "/a/b", "/a/b/1/c", "/a/b/2",
                             "/d", "/e",   "/e/0",     "/a/c"};
    const char *expected[] = {R"({"b":[1,{"c":"x"},3]})",
                              R"([1,{"c":"x"},3])",
                              R"("x")",
                              "3",
                              "12.5",
                              "[]",
                              "",
                              ""};
    std::vector<json_target> targets(std::size(expected));
    std::vector<char> token(json_finder::room_for(1));

    for (std::size_t i = 0; i < targets.size(); i++) {
        targets[i].pointer = pointers[i];
    }

    json_finder finder(targets, token);

    finder.feed(body);
    CHECK(finder.finish() == json_text::complete);

    for (std::size_t i = 0; i < targets.size(); i++) {
        const json_extent &place = targets[i].place;

        CHECK(body.substr(place.at, place.size) == expected[i]);
        CHECK((targets[i].found == json_target::result::found)
              == !std::string_view(expected[i]).empty());
    }
}


TEST_CASE("json finder: a text that is deeper than it may be is broken",
          "[json_finder]")
{
    std::string brackets(json_finder::max_depth, '[');
    json_target target;
    pointer_list pointers = {"/k"};

    target.pointer = pointers[0];

    for (bool too_deep : {false, true}) {
        std::vector<char> token(json_finder::room_for(1));
        json_finder finder({&target, 1}, token);

        finder.feed(brackets);
        finder.feed(too_deep ? "[]" : "");
        finder.feed(std::string(brackets.size(), ']'));
        CHECK(finder.finish()
              == (too_deep ? json_text::broken : json_text::complete));
    }
}
