#include "contract/json_end.h"

#include <catch2/catch.hpp>

#include <string>

using namespace idempotency;

namespace {

bool
is_cut_off(std::string_view text)
{
    json_end document;

    document.feed(text);
    return document.is_cut_off();
}

}


TEST_CASE("every beginning of a document is cut off")
{
    const std::string documents[] = {
        R"({"a":"x\"}","b":[1,2,{"c":[]}],"d":"\\","e":true})",
        R"([[],{},"]"])",
        R"("abc\\\"")",
        "true",
        "false",
        "null"};

    for (const std::string &whole : documents) {
        CHECK(!is_cut_off(whole));
        CHECK(!is_cut_off(" " + whole + "\r\n"));

        for (std::size_t n = 0; n < whole.size(); n++) {
            INFO(whole.substr(0, n));
            CHECK(is_cut_off(whole.substr(0, n)));
        }
    }
}


TEST_CASE("pieces make no difference")
{
    json_end document;

    for (char c : std::string_view(R"({"a":"\"")")) {
        document.feed({&c, 1});
        CHECK(document.is_cut_off());
    }

    document.feed("}");
    CHECK(!document.is_cut_off());
}


TEST_CASE("what is no JSON is not cut off")
{
    for (std::string_view text : {"<html>", "}", "]{", "{\"a\":NaN,}", "12",
                                  "trueish", "{\"a\":1}{\"a\":2}"})
    {
        INFO(text);
        CHECK(!is_cut_off(text));
    }
}
