#include "contract/media_type.h"

#include <catch2/catch.hpp>

#include <random>
#include <string>
#include <vector>

using namespace idempotency;

namespace {

/*
 * The kind, for multipart with the boundary.  Value and buffer are copied to
 * the heap in their exact sizes, where AddressSanitizer sees a step beyond
 * their end.
 */
std::string
parsed(std::string_view value, std::size_t room = max_boundary)
{
    std::vector<char> in(value.begin(), value.end());
    std::vector<char> out(room);
    media_type type = parse_media_type({in.data(), in.size()}, out);

    switch (type.kind) {
    case media::json: return "json";
    case media::form: return "form";
    case media::multipart: return "multipart " + std::string(type.boundary);
    default: return type.boundary.empty() ? "other" : "other, boundary";
    }
}

}


TEST_CASE("media type: what the body is said to be", "[media_type]")
{
    const std::string bcharsnospace =
        "0123456789abcdefghijklmnopqrstuvwxyz'()+_,-./:=?";
    const std::string longest(70, 'b');

    struct {
        std::string value;
        std::string expected;
    } rows[] = {
        {"application/json", "json"},
        {"APPLICATION/Json", "json"},
        {"application/json;charset=utf-8", "json"},
        {"application/json; charset=utf-8", "json"},
        {"application/json \t;\t charset=\"utf-8\"; x=y ", "json"},
        {"application/json;", "json"},
        {"application/json ; ; ;;a=b;", "json"},
        {"  application/json\t", "json"},
        {"application/json; boundary=b", "json"},
        {"application/json; a=\"\"", "json"},
        {"application/json; a=\"\xc3\xa9\\\"\\\\\t;,\"", "json"},
        {"application/problem+json", "json"},
        {"application/vnd.api+JSON; ext=x", "json"},
        {"text/x+json", "json"},
        {"application/a+b+json", "json"},

        {"application/+json", "other"},
        {"text/json", "json"},
        {"Text/JSON; charset=utf-8", "json"},
        {"application/x-amz-json-1.0", "json"},
        {"application/X-Amz-Json-1.1", "json"},
        {"application/x-amz-json-1.2", "other"},
        {"application/x-amz-json", "other"},
        {"text/x-amz-json-1.0", "other"},
        {"image/json", "other"},
        {"json", "other"},
        {"application/jsonx", "other"},
        {"application/json+x", "other"},
        {"application/xjson", "other"},
        {"application/json-seq", "other"},
        {"xapplication/json", "other"},
        {"application/", "other"},
        {"/json", "other"},
        {"/", "other"},
        {"", "other"},
        {" ", "other"},
        {"application /json", "other"},
        {"application/ json", "other"},
        {"application/json/x", "other"},
        {"application/json, text/plain", "other"},
        {"application/json x", "other"},
        {"application/json; charset", "other"},
        {"application/json; charset=", "other"},
        {"application/json; =utf-8", "other"},
        {"application/json; charset =utf-8", "other"},
        {"application/json; charset= utf-8", "other"},
        {"application/json; charset=utf-8, x", "other"},
        {"application/json; charset=utf-8 x", "other"},
        {"application/json; a=\"", "other"},
        {"application/json; a=\"b", "other"},
        {"application/json; a=\"b\\", "other"},
        {"application/json; a=\"b\\\"", "other"},
        {"application/json; a=\"b\"c", "other"},
        {"application/json; a=b\"c\"", "other"},
        {"application/json; a=\"\x7f\"", "other"},
        {"application/json; a=\"\\\x01\"", "other"},
        {"application/json; a=\xc3\xa9", "other"},
        {"application/json\r", "other"},
        {std::string("application/json\0", 17), "other"},
        {"\"application\"/json", "other"},

        {"application/x-www-form-urlencoded", "form"},
        {"Application/X-WWW-Form-Urlencoded; charset=UTF-8", "form"},
        {"application/www-form-urlencoded", "other"},
        {"text/x-www-form-urlencoded", "other"},

        {"multipart/form-data; boundary=b", "multipart b"},
        {"MultiPart/Form-Data;BOUNDARY=bB", "multipart bB"},
        {"multipart/form-data; charset=x; boundary=b; x=y", "multipart b"},
        {"multipart/form-data; boundary=\"b\"", "multipart b"},
        {"multipart/form-data; boundary=\"a b\"", "multipart a b"},
        {"multipart/form-data; boundary=\" b\"", "multipart  b"},
        {"multipart/form-data; boundary=\"\\a\\b\"", "multipart ab"},
        {"multipart/form-data; boundary=\"a;b=c\"", "other"},
        {"multipart/form-data; x=\"boundary=a\"; boundary=b", "multipart b"},
        {"multipart/form-data; boundary=\"" + bcharsnospace + "\"",
         "multipart " + bcharsnospace},
        {"multipart/form-data; boundary=----=_Part_0_1.2",
         "multipart ----=_Part_0_1.2"},
        {"multipart/form-data; boundary=a/b:c?d", "multipart a/b:c?d"},
        {"multipart/form-data; boundary=" + longest, "multipart " + longest},
        {"multipart/form-data; boundary=\"\\" + longest + "\"",
         "multipart " + longest},
        {"multipart/form-data", "other"},
        {"multipart/form-data;", "other"},
        {"multipart/form-data; boundary", "other"},
        {"multipart/form-data; boundary=", "other"},
        {"multipart/form-data; boundary=\"\"", "other"},
        {"multipart/form-data; boundary=\" \"", "other"},
        {"multipart/form-data; boundary=\"b \"", "other"},
        {"multipart/form-data; boundary=" + longest + "b", "other"},
        {"multipart/form-data; boundary=\"\\" + longest + "b\"", "other"},
        {"multipart/form-data; boundary=\"a\tb\"", "other"},
        {"multipart/form-data; boundary=\"a\\\"b\"", "other"},
        {"multipart/form-data; boundary=a*b", "other"},
        {"multipart/form-data; boundary=a(b)", "other"},
        {"multipart/form-data; boundary=a,b", "other"},
        {"multipart/form-data; boundary=a@b", "other"},
        {"multipart/form-data; boundary=\"\xc3\xa9\"", "other"},
        {"multipart/form-data; boundary=a; boundary=a", "other"},
        {"multipart/form-data; boundary=a; Boundary=b", "other"},
        {"multipart/form-data; boundary=\"\"; boundary=b", "other"},
        {"multipart/form-data; xboundary=b", "other"},
        {"multipart/form-data, boundary=b", "other"},
        {"multipart/mixed; boundary=b", "other"},
        {"multipart/related; boundary=b", "other"},
        {"text/plain", "other"},
    };

    for (const auto &row : rows) {
        INFO(row.value);
        CHECK(parsed(row.value) == row.expected);
    }
}


TEST_CASE("media type: JSON is named whatever follows", "[media_type]")
{
    for (const char *value :
         {"application/json", " text/json", "application/json; charset",
          "application/json x", "application/json, text/plain",
          "application/vnd.api+json;;=", "application/x-amz-json-1.0\r",
          "Application/JSON;a=\""})
    {
        INFO(value);
        CHECK(names_json(value));
    }

    for (const char *value :
         {"", "json", "/json", "application/", "application/jsonp",
          "application /json", "text/plain, application/json", "/x+json",
          "application/json-seq", "multipart/form-data; boundary=b"})
    {
        INFO(value);
        CHECK_FALSE(names_json(value));
    }
}


TEST_CASE("media type: where the boundary lies", "[media_type]")
{
    char out[4] = {};

    SECTION("without an escape in the value itself")
    {
        std::string_view value = "multipart/form-data; boundary=\"abcdef\"";
        auto type = parse_media_type(value, out);

        REQUIRE(type.kind == media::multipart);
        CHECK(type.boundary.data() == value.data() + 31);
        CHECK(out[0] == 0);
    }

    SECTION("with an escape in the buffer")
    {
        auto type = parse_media_type(
            "multipart/form-data; boundary=\"a\\bcd\"", out);

        REQUIRE(type.kind == media::multipart);
        CHECK(type.boundary.data() == out);
        CHECK(type.boundary == "abcd");
    }

    SECTION("a buffer too short is not overrun")
    {
        CHECK(parsed("multipart/form-data; boundary=\"a\\bcd\"", 3)
              == "other");
        CHECK(parsed("multipart/form-data; boundary=\"a\\b\"", 0) == "other");
    }
}


TEST_CASE("media type: every byte of a boundary", "[media_type]")
{
    const std::string good = "'()+_,-./:=? ";

    for (int i = 0; i < 256; i++) {
        char c = static_cast<char>(i);
        bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z')
                            || (c >= 'A' && c <= 'Z');
        bool expected = alphanumeric || good.find(c) != good.npos;

        INFO(i);
        CHECK(is_boundary(std::string("a") + c + "b") == expected);
        CHECK(is_boundary(std::string("a") + c) == (expected && c != ' '));
    }
}


TEST_CASE("media type: any bytes are parsed within their bounds",
          "[media_type]")
{
    std::mt19937 random(5);
    const std::string alphabet = "\"\\;=ab \t,/\x7f\x80";
    unsigned good = 0;

    for (int round = 0; round < 100000; round++) {
        std::string value = "multipart/form-data;";

        if (random() % 2 == 0) {
            value += "boundary=";
        }

        for (unsigned size = random() % 10; size > 0; size--) {
            value += alphabet[random() % alphabet.size()];
        }

        std::string found = parsed(value, random() % 8);

        if (found != "other") {
            good++;
            INFO(value);
            REQUIRE(found.substr(0, 10) == "multipart ");
            REQUIRE(is_boundary(found.substr(10)));
        }
    }

    CHECK(good > 1000);
}
