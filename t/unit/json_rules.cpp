#include "json_body.h"

#include <catch2/catch.hpp>

using namespace idempotency;

namespace {

struct rules_row {
    const char *claim;
    pointer_list include;
    pointer_list exclude;
    const char *one;
    const char *other;
    bool same;
};


void
check(const rules_row &row, bool jsonrpc)
{
    json_parser parser;
    json_rules rules;

    rules.include = row.include;
    rules.exclude = row.exclude;
    rules.jsonrpc = jsonrpc;

    std::string one = json_digest(parser, row.one, rules);
    std::string other = json_digest(parser, row.other, rules);

    INFO(row.claim);
    INFO(row.one);
    INFO(row.other);
    CHECK(one.size() == 32);
    CHECK(other.size() == 32);
    CHECK((one == other) == row.same);
}

}


TEST_CASE("json: what is excluded does not count", "[json]")
{
    const rules_row rows[] = {
        {"the value",
         {},
         {"/t"},
         R"({"a":1,"t":1})",
         R"({"t":2,"a":1})",
         true},
        {"nor that it is there",
         {},
         {"/t"},
         R"({"a":1,"t":1})",
         R"({"a":1})",
         true},
        {"nor what is in it",
         {},
         {"/t"},
         R"({"t":{"a":1,"b":[2]}})",
         R"({"t":[]})",
         true},
        {"others do",
         {},
         {"/t"},
         R"({"a":1,"t":1})",
         R"({"a":2,"t":1})",
         false},
        {"null as well", {}, {"/t"}, R"({"a":null})", R"({})", false},
        {"deeper ones of that name do",
         {},
         {"/t"},
         R"({"a":{"t":1}})",
         R"({"a":{"t":2}})",
         false},
        {"the object around it does",
         {},
         {"/a/t"},
         R"({"a":{"t":1}})",
         R"({})",
         false},
        {"and its other members",
         {},
         {"/a/t"},
         R"({"a":{"t":1,"x":1}})",
         R"({"a":{"t":1,"x":2}})",
         false},
        {"deep",
         {},
         {"/a/b/c"},
         R"({"a":{"b":{"c":1,"d":2}}})",
         R"({"a":{"b":{"d":2,"c":9}}})",
         true},
        {"by index",
         {},
         {"/a/1"},
         R"({"a":[1,2,3]})",
         R"({"a":[1,9,3]})",
         true},
        {"its neighbours stay",
         {},
         {"/a/1"},
         R"({"a":[1,2,3]})",
         R"({"a":[1,2,4]})",
         false},
        {"where they are",
         {},
         {"/a/1"},
         R"({"a":[1,2,3]})",
         R"({"a":[1,3]})",
         false},
        {"the first", {}, {"/0"}, R"([1,2])", R"([2,2])", true},
        {"is not the second", {}, {"/0"}, R"([1,2])", R"([2,1])", false},
        {"an index without leading zeros",
         {},
         {"/01"},
         R"([1,2])",
         R"([1,3])",
         false},
        {"no index past the end", {}, {"/-"}, R"([1,2])", R"([1,3])", false},
        {"two digits",
         {},
         {"/11"},
         "[0,1,2,3,4,5,6,7,8,9,10,11,12]",
         "[0,1,2,3,4,5,6,7,8,9,10,0,12]",
         true},
        {"a number is a name, too",
         {},
         {"/1"},
         R"({"1":1})",
         R"({"1":2})",
         true},
        {"any element",
         {},
         {"/a/*/t"},
         R"({"a":[{"t":1,"x":1},{"t":2}]})",
         R"({"a":[{"x":1},{"t":3}]})",
         true},
        {"any member",
         {},
         {"/*/t"},
         R"({"a":{"t":1},"b":{"t":2}})",
         R"({"b":{},"a":{}})",
         true},
        {"one level, not two",
         {},
         {"/*/t"},
         R"({"a":{"b":{"t":1}}})",
         R"({"a":{"b":{"t":2}}})",
         false},
        {"nor none", {}, {"/*/t"}, R"({"t":1})", R"({"t":2})", false},
        {"all elements: empty",
         {},
         {"/a/*"},
         R"({"a":[1,2]})",
         R"({"a":[]})",
         true},
        {"but not all the same",
         {},
         {"/a/*"},
         R"({"a":[1,2]})",
         R"({"a":{}})",
         false},
        {"several",
         {},
         {"/a", "/b/c", "/d"},
         R"({"a":1,"b":{"c":1},"d":1})",
         R"({"d":2,"b":{}})",
         true},
        {"one in another",
         {},
         {"/a/b", "/a"},
         R"({"a":{"b":1,"c":1}})",
         R"({})",
         true},
        {"escapes in the pointer",
         {},
         {"/a~1b", "/c~0d"},
         R"({"a/b":1,"c~d":1,"x":1})",
         R"({"x":1})",
         true},
        {"escapes in the document",
         {},
         {"/ab"},
         R"({"a\u0062":1})",
         R"({})",
         true},
        {"the empty name", {}, {"/"}, R"({"":1,"a":1})", R"({"a":1})", true},
        {"the empty name in one",
         {},
         {"/a/"},
         R"({"a":{"":1}})",
         R"({"a":{}})",
         true},
        {"case matters", {}, {"/A"}, R"({"a":1})", R"({"a":2})", false},
        {"order does not",
         {},
         {"/b"},
         R"({"c":3,"b":2,"a":1})",
         R"({"a":1,"c":3})",
         true},
        {"nor inside",
         {},
         {"/x"},
         R"({"x":1,"o":{"z":1,"y":{"b":1,"a":1}}})",
         R"({"o":{"y":{"a":1,"b":1},"z":1},"x":{"q":{"s":1,"r":1}}})",
         true},
        {"what is not excluded keeps to its place",
         {},
         {"/x/t"},
         R"({"x":{"t":{"d":1,"c":2}},"y":{"b":{"f":1,"e":2},"a":2}})",
         R"({"x":{},"y":{"a":2,"b":{"e":2,"f":1}}})",
         true},
        {"outermost values that have no members", {}, {"/a"}, "1", "2", false},
    };

    for (const auto &row : rows) {
        check(row, false);
    }
}


TEST_CASE("json: only what is included counts", "[json]")
{
    const rules_row rows[] = {
        {"others do not",
         {"/a"},
         {},
         R"({"a":1,"b":1})",
         R"({"b":2,"a":1})",
         true},
        {"nor that they are there",
         {"/a"},
         {},
         R"({"a":1,"b":1})",
         R"({"a":1})",
         true},
        {"it does", {"/a"}, {}, R"({"a":1,"b":1})", R"({"a":2,"b":1})", false},
        {"and all that is in it",
         {"/a"},
         {},
         R"({"a":{"x":[1]}})",
         R"({"a":{"x":[2]}})",
         false},
        {"null is not absent", {"/a"}, {}, R"({"a":null})", R"({})", false},
        {"nor is an empty object", {"/a"}, {}, R"({"a":{}})", R"({})", false},
        {"an empty object is no empty array",
         {"/a"},
         {},
         R"({"a":{}})",
         R"({"a":[]})",
         false},
        {"absent is absent", {"/a"}, {}, R"({"b":1})", R"({"c":[2]})", true},
        {"in whatever there is", {"/a"}, {}, R"([1,2])", R"("x")", true},
        {"or that it could be in",
         {"/a/b"},
         {},
         R"({"a":{"c":1}})",
         R"({"a":7})",
         true},
        {"deep",
         {"/a/b"},
         {},
         R"({"a":{"b":1,"c":2},"d":3})",
         R"({"a":{"b":1}})",
         true},
        {"where it is",
         {"/a/x", "/b/x"},
         {},
         R"({"a":{"x":1}})",
         R"({"b":{"x":1}})",
         false},
        {"in an object or an array",
         {"/a/0"},
         {},
         R"({"a":[1]})",
         R"({"a":{"0":1}})",
         false},
        {"by index", {"/1"}, {}, R"([1,2,3])", R"([3,2])", true},
        {"the index counts", {"/*"}, {}, R"([1,2])", R"([2,1])", false},
        {"of what is kept",
         {"/*/k"},
         {},
         R"([{"k":1},{},{"k":2}])",
         R"([{"k":1},[1],{"k":2,"l":1},{}])",
         true},
        {"and only there",
         {"/*/k"},
         {},
         R"([{"k":1},{},{"k":2}])",
         R"([{"k":1},{"k":2},{}])",
         false},
        {"one, and the second",
         {"/*/k"},
         {},
         R"([{"k":1}])",
         R"([{},{"k":1}])",
         false},
        {"any member",
         {"/*/k"},
         {},
         R"({"a":{"k":1},"b":{"j":1}})",
         R"({"a":{"k":1}})",
         true},
        {"several",
         {"/a", "/c"},
         {},
         R"({"a":1,"b":2,"c":3})",
         R"({"c":3,"b":4,"a":1})",
         true},
        {"each of them",
         {"/a", "/c"},
         {},
         R"({"a":1,"c":3})",
         R"({"a":1})",
         false},
        {"one in another",
         {"/a", "/a/b"},
         {},
         R"({"a":{"b":1,"c":2}})",
         R"({"a":{"b":1,"c":3}})",
         false},
        {"two ways in",
         {"/a/b", "/a/c"},
         {},
         R"({"a":{"b":1,"c":2,"d":3}})",
         R"({"a":{"c":2,"b":1}})",
         true},
        {"order does not count",
         {"/a"},
         {},
         R"({"a":{"y":1,"x":2}})",
         R"({"b":{"q":1,"p":1},"a":{"x":2,"y":1}})",
         true},
        {"not what is excluded in it",
         {"/a"},
         {"/a/t"},
         R"({"a":{"t":1,"x":1}})",
         R"({"a":{"x":1},"b":1})",
         true},
        {"but the rest",
         {"/a"},
         {"/a/t"},
         R"({"a":{"t":1,"x":1}})",
         R"({"a":{"t":1,"x":2}})",
         false},
        {"and that it is there",
         {"/a"},
         {"/a/t"},
         R"({"a":{"t":1}})",
         R"({})",
         false},
        {"excluded as a whole",
         {"/a/b"},
         {"/a"},
         R"({"a":{"b":1}})",
         R"({"a":{"b":2}})",
         true},
        {"excluded by any",
         {"/a/*/k"},
         {"/a/1"},
         R"({"a":[{"k":1},{"k":2},{"k":3}]})",
         R"({"a":[{"k":1},{"k":9},{"k":3}]})",
         true},
        {"excluded outside of it",
         {"/a"},
         {"/b"},
         R"({"a":1,"b":1})",
         R"({"a":1})",
         true},
    };

    for (const auto &row : rows) {
        check(row, false);
    }
}


TEST_CASE("json: the id of a JSON-RPC request does not count", "[json]")
{
    const rules_row rows[] = {
        {"another id",
         {},
         {},
         R"({"id":1,"method":"a"})",
         R"({"method":"a","id":"x"})",
         true},
        {"none",
         {},
         {},
         R"({"id":1,"method":"a"})",
         R"({"method":"a"})",
         true},
        {"spelled otherwise",
         {},
         {},
         R"({"\u0069d":1,"method":"a"})",
         R"({"method":"a"})",
         true},
        {"another method",
         {},
         {},
         R"({"id":1,"method":"a"})",
         R"({"id":1,"method":"b"})",
         false},
        {"the id of something else",
         {},
         {},
         R"({"id":1,"params":{"id":1}})",
         R"({"id":1,"params":{"id":2}})",
         false},
        {"nor where rules lead to it",
         {},
         {"/params/t"},
         R"({"id":1,"params":{"id":1,"t":1}})",
         R"({"id":1,"params":{"id":2,"t":1}})",
         false},
        {"even where it is included",
         {"/id", "/m"},
         {},
         R"({"id":1,"m":1})",
         R"({"id":2,"m":1})",
         true},
        {"with what is excluded",
         {},
         {"/p/_meta"},
         R"({"id":1,"p":{"_meta":1,"x":2}})",
         R"({"p":{"x":2},"id":3})",
         true},
        {"a string is a string", {}, {}, R"("a")", R"("b")", false},
    };

    for (const auto &row : rows) {
        check(row, true);
    }

    json_parser parser;
    json_rules rules;

    rules.jsonrpc = true;
    CHECK(json_digest(parser, R"([{"id":1}])", rules) == "not json");
    CHECK(json_digest(parser, " []", rules) == "not json");
    CHECK(json_digest(parser, R"({"id":1,"id":2})", rules) == "not json");
    CHECK(json_digest(parser, R"({"id":{"a":1,"a":2}})", rules) == "not json");

    /* without the rule it counts */
    CHECK(json_digest(parser, R"({"id":1})")
          != json_digest(parser, R"({"id":2})"));
}


TEST_CASE("json: rules that touch nothing change nothing", "[json]")
{
    json_parser parser;
    json_rules rules;
    pointer_list none = {"/no/such", "/*/none", "/9", "/b/x/y/z"};

    rules.exclude = none;

    for (const char *body :
         {"1", "[]", "{}", R"({"b":{"x":1,"a":[1,{"d":1,"c":2}]},"a":2})",
          R"([1,[2,{"b":1,"a":2}]])", R"({"a":1,"b":2})"})
    {
        INFO(body);
        CHECK(json_digest(parser, body, rules) == json_digest(parser, body));
    }
}


TEST_CASE("json: as many pointers as there may be", "[json]")
{
    json_parser parser;
    std::vector<std::string> texts;
    std::vector<std::vector<std::string_view>> segments;
    std::vector<json_pointer> pointers;

    for (std::size_t i = 0; i < max_pointers; i++) {
        texts.push_back("m" + std::to_string(i));
    }
    for (const std::string &text : texts) {
        segments.push_back({text, "t"});
    }
    for (const auto &list : segments) {
        pointers.push_back({list});
    }

    for (const std::string &text : texts) {
        json_rules rules;
        std::string one = "{\"" + text + "\":{\"t\":1}}";
        std::string other = "{\"" + text + "\":{\"t\":2}}";

        rules.exclude = pointers;
        CHECK(json_digest(parser, one, rules)
              == json_digest(parser, other, rules));
        rules.exclude = {};
        rules.include = pointers;
        CHECK(json_digest(parser, one, rules)
              != json_digest(parser, other, rules));
        CHECK(json_digest(parser, one, rules)
              != json_digest(parser, "{}", rules));
    }
}
