#include "contract/key.h"

#include <catch2/catch.hpp>

#include <random>
#include <set>
#include <string>
#include <vector>

using namespace idempotency;

namespace {

const std::string malformed = "(malformed)";


/*
 * Value and buffer are copied to the heap in their exact sizes, where
 * AddressSanitizer sees a step beyond their end.
 */
std::string
parsed(std::string_view value)
{
    std::vector<char> in(value.begin(), value.end());
    std::vector<char> out(value.size());
    auto key = parse_key_field({in.data(), in.size()}, out);

    return key ? std::string(*key) : malformed;
}


std::string
checked(std::string_view text, const key_rules &rules)
{
    std::vector<char> in(text.begin(), text.end());
    std::vector<char> out(text.size());
    std::string_view key(in.data(), in.size());

    return check_key(key, rules, out) == key_fault::none ? std::string(key)
                                                         : "(refused)";
}


std::string
all_but(std::string_view left_out)
{
    std::string text;

    for (char c = 0x21; c < 0x7f; c++) {
        if (left_out.find(c) == left_out.npos) {
            text += c;
        }
    }

    return text;
}

}


TEST_CASE("key: what a field's value spells", "[key]")
{
    struct {
        std::string value;
        std::string expected;
    } rows[] = {
        /* bare values */
        {"abc", "abc"},
        {"a", "a"},
        {"8e03978e-40d5-43dd-bc93-6894a57f9324",
         "8e03978e-40d5-43dd-bc93-6894a57f9324"},
        {"ABC", "ABC"},
        {all_but("\","), all_but("\",")},
        {"a;b=c", "a;b=c"},
        {";", ";"},
        {"a\\b", "a\\b"},
        {"\\", "\\"},
        {":YWJj:", ":YWJj:"},
        {"  abc\t ", "abc"},
        {"", malformed},
        {" ", malformed},
        {" \t ", malformed},
        {"a b", malformed},
        {"a\tb", malformed},
        {"a,b", malformed},
        {"a,", malformed},
        {",", malformed},
        {"a\"b", malformed},
        {"a\"", malformed},
        {"a\"b\"", malformed},
        {std::string("a\0b", 3), malformed},
        {std::string("\0", 1), malformed},
        {"a\x1f", malformed},
        {"a\x7f", malformed},
        {"a\x80", malformed},
        {"a\xff", malformed},
        {"sch\xc3\xb6n", malformed},

        /* strings */
        {"\"abc\"", "abc"},
        {" \"abc\"\t", "abc"},
        {"\"\"", ""},
        {"\"a b\"", "a b"},
        {"\" a \"", " a "},
        {"\" \"", " "},
        {"\"a,b;c=d\"", "a,b;c=d"},
        {"\"" + all_but("\"\\") + "\"", all_but("\"\\")},
        {"\"a\\\"b\"", "a\"b"},
        {"\"a\\\\b\"", "a\\b"},
        {"\"\\\\\"", "\\"},
        {"\"\\\"\"", "\""},
        {"\"\\\\\\\"\\\\\"", "\\\"\\"},
        {"\"x\\\\\";p=1", "x\\"},
        {"\"", malformed},
        {"\"abc", malformed},
        {"\"abc\\\"", malformed},
        {"\"abc\\", malformed},
        {"\"a\\b\"", malformed},
        {"\"a\\ \"", malformed},
        {"\"a\tb\"", malformed},
        {"\"a\x1f\"", malformed},
        {"\"a\x7f\"", malformed},
        {"\"a\x80\"", malformed},
        {std::string("\"a\0\"", 4), malformed},
        {"\"a\"b", malformed},
        {"\"a\" b", malformed},
        {"\"a\"\"b\"", malformed},
        {"\"a\",\"b\"", malformed},
        {"\"a\", \"b\"", malformed},
        {"\"a\",", malformed},
        {"\"a\"\\", malformed},
    };

    for (const auto &row : rows) {
        INFO(row.value);
        CHECK(parsed(row.value) == row.expected);
    }
}


TEST_CASE("key: parameters are ignored, if they are parameters", "[key]")
{
    struct {
        std::string parameters;
        bool good;
    } rows[] = {
        {";p", true},
        {";p;q", true},
        {"; p", true},
        {";   p", true},
        {";*", true},
        {";*p", true},
        {";p0_-.*=1", true},
        {";p=1 ", true},
        {";p;p", true},
        {";", false},
        {"; ", false},
        {";;p", false},
        {";p;", false},
        {" ;p", false},
        {";p ;q", false},
        {";\tp", false},
        {";P", false},
        {";pP", false},
        {";0", false},
        {";-p", false},
        {";=1", false},
        {";p=", false},
        {";p =1", false},
        {";p= 1", false},
        {";p=1,", false},
        {";p==1", false},

        /* integers and decimals */
        {";p=0", true},
        {";p=007", true},
        {";p=-1", true},
        {";p=-0", true},
        {";p=123456789012345", true},
        {";p=-123456789012345", true},
        {";p=1.0", true},
        {";p=-1.125", true},
        {";p=123456789012.123", true},
        {";p=-", false},
        {";p=--1", false},
        {";p=+1", false},
        {";p=1234567890123456", false},
        {";p=1.", false},
        {";p=.1", false},
        {";p=-.1", false},
        {";p=1.1234", false},
        {";p=1234567890123.1", false},
        {";p=1.2.3", false},
        {";p=1e3", false},
        {";p=1a", false},

        /* strings */
        {";p=\"\"", true},
        {";p=\"a;b,c\"", true},
        {";p=\"\\\"\\\\\"", true},
        {";p=\"a\";q=\"b\"", true},
        {";p=\"", false},
        {";p=\"\\\"", false},
        {";p=\"\\a\"", false},
        {";p=\"a\"b", false},
        {";p=\"\x7f\"", false},

        /* tokens */
        {";p=a", true},
        {";p=A", true},
        {";p=*", true},
        {";p=a0!#$%&'*+-.^_`|~:/", true},
        {";p=a;q=b", true},
        {";p=a b", false},
        {";p=a,b", false},
        {";p=a=b", false},
        {";p=a\"", false},
        {";p=a\\", false},
        {";p=a(", false},
        {";p=a\x80", false},
        {";p=!a", false},
        {";p=/a", false},

        /* byte sequences */
        {";p=::", true},
        {";p=:YWJj:", true},
        {";p=:YQ==:", true},
        {";p=:az09AZ+/:", true},
        {";p=:", false},
        {";p=:YWJj", false},
        {";p=:YW-j:", false},
        {";p=:YW j:", false},
        {";p=:YWJj:x", false},

        /* booleans */
        {";p=?0", true},
        {";p=?1", true},
        {";p=?", false},
        {";p=?2", false},
        {";p=?t", false},
        {";p=?01", false},

        /* not of RFC 8941 */
        {";p=@1", false},
        {";p=%\"a\"", false},
        {";p=(a)", false},
    };

    for (const auto &row : rows) {
        INFO(row.parameters);
        CHECK(parsed("\"k\"" + row.parameters)
              == (row.good ? "k" : malformed));

        /* an escape takes the other way out */
        CHECK(parsed("\"\\\\\"" + row.parameters)
              == (row.good ? "\\" : malformed));
    }
}


TEST_CASE("key: where the result lies", "[key]")
{
    char out[16] = {};

    SECTION("without an escape in the value itself")
    {
        std::string_view value = " \"abc\";p";
        auto key = parse_key_field(value, out);

        REQUIRE(key);
        CHECK(key->data() == value.data() + 2);
        CHECK(out[0] == 0);
    }

    SECTION("bare in the value itself")
    {
        std::string_view value = " abc";
        auto key = parse_key_field(value, out);

        REQUIRE(key);
        CHECK(key->data() == value.data() + 1);
    }

    SECTION("with an escape in the buffer")
    {
        auto key = parse_key_field("\"a\\\"c\"", out);

        REQUIRE(key);
        CHECK(key->data() == out);
    }

    SECTION("a buffer too short is not overrun")
    {
        CHECK_FALSE(parse_key_field("\"a\\\"c\"", std::span(out, 2)));
    }
}


TEST_CASE("key: any bytes are parsed within their bounds", "[key]")
{
    std::mt19937 random(1);
    static const char alphabet[] = "\"\\;=ap01-.:?* ,\t\x7f\x80";
    unsigned good = 0;

    for (int round = 0; round < 200000; round++) {
        std::string value;

        for (unsigned size = random() % 12; size > 0; size--) {
            value += alphabet[random() % (sizeof(alphabet) - 1)];
        }

        std::string key = parsed(value);

        if (key != malformed) {
            good++;
            INFO(value);
            REQUIRE(key.size() <= value.size());
            for (char c : key) {
                REQUIRE((c >= 0x20 && c <= 0x7e));
            }
        }
    }

    CHECK(good > 1000);
}


TEST_CASE("key: a key as a string spells itself", "[key]")
{
    std::mt19937 random(2);

    for (int round = 0; round < 10000; round++) {
        std::string key;
        std::string value = "\"";

        for (unsigned size = random() % 40; size > 0; size--) {
            char c = static_cast<char>(0x20 + random() % 0x5f);

            key += c;
            if (c == '"' || c == '\\') {
                value += '\\';
            }
            value += c;
        }

        REQUIRE(parsed(value + "\"") == key);
    }
}


TEST_CASE("key: which keys may be used", "[key]")
{
    const std::string refused = "(refused)";
    const std::string id = "8e03978e-40d5-43dd-bc93-6894a57f9324";
    const key_rules any;
    const key_rules four_to_six = {4, 6, false};
    const key_rules careless = {0, 255, false};
    const key_rules uuid = {1, 255, true};
    const key_rules short_uuid = {1, 35, true};
    const key_rules long_uuid = {37, 255, true};

    struct {
        std::string key;
        key_rules rules;
        std::string expected;
    } rows[] = {
        {"", any, refused},
        {"", careless, refused},
        {"a", any, "a"},
        {std::string(255, 'a'), any, std::string(255, 'a')},
        {std::string(256, 'a'), any, refused},
        {"abc", four_to_six, refused},
        {"abcd", four_to_six, "abcd"},
        {"abcdef", four_to_six, "abcdef"},
        {"abcdefg", four_to_six, refused},

        {"AbC", any, "AbC"},
        {" ", any, " "},
        {"a\"b,c~", any, "a\"b,c~"},
        {"a\x1f", any, refused},
        {"a\tb", any, refused},
        {"a\x7f", any, refused},
        {"a\x80", any, refused},
        {"\xff", any, refused},
        {std::string("a\0b", 3), any, refused},
        {"a\r\nb", any, refused},

        {id, uuid, id},
        {"8E03978E-40D5-43DD-BC93-6894A57F9324", uuid, id},
        {"8e03978E-40d5-43dD-Bc93-6894a57F9324", uuid, id},
        {"8E03978E-40D5-43DD-BC93-6894A57F9324", any,
         "8E03978E-40D5-43DD-BC93-6894A57F9324"},
        {"00000000-0000-0000-0000-000000000000", uuid,
         "00000000-0000-0000-0000-000000000000"},
        {"FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF", uuid,
         "ffffffff-ffff-ffff-ffff-ffffffffffff"},
        {"017f22e2-79b0-7cc3-98c4-dc0c0c07398f", uuid,
         "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"},
        {id, short_uuid, refused},
        {id, long_uuid, refused},
        {id.substr(1), uuid, refused},
        {id + "0", uuid, refused},
        {"{" + id + "}", uuid, refused},
        {"urn:uuid:" + id, uuid, refused},
        {"8e03978e40d543ddbc936894a57f9324", uuid, refused},
        {"8e03978e-40d5-43dd-bc93-6894a57f932g", uuid, refused},
        {"8e03978e-40d5-43dd-bc93-6894a57f932@", uuid, refused},
        {"8e03978e-40d5-43dd-bc93-6894a57f932`", uuid, refused},
        {"8e03978e-40d5-43dd-bc93-6894a57f932:", uuid, refused},
        {"8e03978e-40d5-43dd-bc93-6894a57f932/", uuid, refused},
        {"8e03978e-40d5-43dd-bc93-6894a57f932G", uuid, refused},
        {"8e03978e-40d5-43dd-bc93-6894a57f932 ", uuid, refused},
        {"8e03978e-40d5-43dd-bc9-36894a57f9324", uuid, refused},
        {"8e03978e-40d5-43dd-bc930-894a57f9324", uuid, refused},
        {"8e03978e.40d5-43dd-bc93-6894a57f9324", uuid, refused},
        {"8e03978-e40d5-43dd-bc93-6894a57f9324", uuid, refused},
        {"------------------------------------", uuid, refused},
        {"abc", uuid, refused},
    };

    for (const auto &row : rows) {
        INFO(row.key);
        CHECK(checked(row.key, row.rules) == row.expected);
    }
}


TEST_CASE("key: every byte is either usable or not", "[key]")
{
    for (int c = 0; c < 256; c++) {
        std::string key(1, static_cast<char>(c));

        INFO(c);
        CHECK((checked(key, {}) == key) == (c >= 0x20 && c <= 0x7e));
    }
}


TEST_CASE("key: a refused key stays where it was", "[key]")
{
    const std::string text = "not a uuid";
    char out[64];
    std::string_view key = text;

    CHECK(check_key(key, {1, 255, true}, out) == key_fault::not_uuid);
    CHECK(key.data() == text.data());
    CHECK(key.size() == text.size());

    const std::string id = "8e03978e-40d5-43dd-bc93-6894a57f9324";
    key = id;
    CHECK(check_key(key, {1, 255, true}, std::span(out, 35))
          == key_fault::not_uuid);
    CHECK(key.data() == id.data());
}


TEST_CASE("record name: the bytes that are hashed", "[key]")
{
    /* Python's hashlib, as in digest.cpp */

    const record_id on_route = {
        0xa0, 0xfc, 0xc7, 0x27, 0xd8, 0x7f, 0x83, 0xe2,
        0xea, 0x2d, 0xa9, 0x48, 0xd6, 0xf2, 0x4a, 0x88,
    };
    const record_id anywhere = {
        0xa7, 0xd2, 0x70, 0x02, 0x6d, 0xdf, 0xb9, 0x20,
        0x67, 0x4d, 0x3b, 0xce, 0x01, 0xab, 0x54, 0x1c,
    };
    const record_id of_dry_run = {
        0x7b, 0xce, 0xb1, 0xc5, 0x28, 0x1b, 0x99, 0x93,
        0xaf, 0xa7, 0x4b, 0x89, 0x54, 0xb6, 0x11, 0x58,
    };
    const std::string_view scope[] = {"alice", ""};
    const route where = {"example.com", "443", "POST", "/pay"};
    hasher hash;
    record_id name;

    REQUIRE(record_name(hash, scope, where, "k-1", name));
    CHECK(name == on_route);

    REQUIRE(record_name(hash, {}, {}, "k-1", name));
    CHECK(name == anywhere);

    REQUIRE(record_name(hash, scope, where, "k-1", name, run_kind::dry));
    CHECK(name == of_dry_run);
}


TEST_CASE("record name: different owners, routes and keys differ", "[key]")
{
    constexpr auto any = std::nullopt;

    struct {
        std::vector<std::string_view> scope;
        route where;
        std::string_view key;
    } rows[] = {
        {{"alice"}, {"h", "80", "POST", "/a"}, "k"},
        {{"bob"}, {"h", "80", "POST", "/a"}, "k"},
        {{"Alice"}, {"h", "80", "POST", "/a"}, "k"},
        {{"alice"}, {"g", "80", "POST", "/a"}, "k"},
        {{"alice"}, {"h", "81", "POST", "/a"}, "k"},
        {{"alice"}, {"h", "80", "PUT", "/a"}, "k"},
        {{"alice"}, {"h", "80", "POST", "/b"}, "k"},
        {{"alice"}, {"h", "80", "POST", "/a"}, "K"},
        {{}, {"h", "80", "POST", "/a"}, "k"},
        {{}, {}, "k"},
        {{""}, {}, "k"},
        {{"", ""}, {}, "k"},

        /* some parts of the route */
        {{"alice"}, {}, "k"},
        {{"alice"}, {any, "80", "POST", "/a"}, "k"},
        {{"alice"}, {"h", any, "POST", "/a"}, "k"},
        {{"alice"}, {"h", "80", any, "/a"}, "k"},
        {{"alice"}, {"h", "80", "POST", any}, "k"},
        {{"alice"}, {"h", any, any, any}, "k"},
        {{"alice"}, {any, "h", any, any}, "k"},
        {{"alice"}, {any, any, "h", any}, "k"},
        {{"alice"}, {any, any, any, "h"}, "k"},
        {{"alice"}, {"", any, any, any}, "k"},

        /* the same letters, other borders */
        {{"ali", "ce"}, {"h", "80", "POST", "/a"}, "k"},
        {{"alice", ""}, {"h", "80", "POST", "/a"}, "k"},
        {{"", "alice"}, {"h", "80", "POST", "/a"}, "k"},
        {{"alice"}, {"h80", "", "POST", "/a"}, "k"},
        {{"alice"}, {"h", "80", "POST", ""}, "/ak"},
        {{"alice"}, {"h", "80", "POST", "/ak"}, ""},

        /* a scope that looks like a route */
        {{"alice", "h", "80", "POST", "/a"}, {}, "k"},
    };
    std::set<record_id> seen;

    hasher hash;

    for (const auto &row : rows) {
        record_id name;

        REQUIRE(record_name(hash, row.scope, row.where, row.key, name));
        seen.insert(name);
    }

    CHECK(seen.size() == std::size(rows));
}
