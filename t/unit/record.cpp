#include "contract/record.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

using namespace idempotency;

namespace {

using bytes = std::vector<std::uint8_t>;


struct text_field {
    std::string name;
    std::string value;
};


struct response {
    response_head head;
    std::vector<text_field> headers;
    std::string body;
    std::vector<text_field> trailers;
};


void
add(bytes &out, const field &f)
{
    std::size_t at = out.size();

    REQUIRE(encodable(f));
    out.resize(at + encoded_size(f));

    std::uint8_t *end = encode(out.data() + at, f);
    REQUIRE(end == out.data() + out.size());
}


/* As the module writes it: the head at once, the rest when it is there. */
bytes
written(const response &r)
{
    bytes out(encoded_size(r.head));

    REQUIRE(encodable(r.head));
    std::uint8_t *end = encode(out.data(), r.head, r.headers.size());
    REQUIRE(end == out.data() + out.size());

    for (const auto &f : r.headers) {
        add(out, {f.name, f.value});
    }

    out.insert(out.end(), r.body.begin(), r.body.end());

    for (const auto &f : r.trailers) {
        add(out, {f.name, f.value});
    }

    set_body(out.data(), r.body.size(), r.trailers.size());
    return out;
}


void
check_same(const response_head &a, const response_head &b)
{
    CHECK(a.status == b.status);
    CHECK(a.content_type_length == b.content_type_length);
    CHECK(a.own_location == b.own_location);
    CHECK(a.no_server == b.no_server);
    CHECK(a.content_length == b.content_length);
    CHECK(a.last_modified == b.last_modified);
    CHECK(a.status_line == b.status_line);
    CHECK(a.content_type == b.content_type);
    CHECK(a.charset == b.charset);
    CHECK(a.place == b.place);
}


void
check_round_trip(const response &r)
{
    bytes in = written(r);
    response_reader reader;
    field f;

    REQUIRE(reader.open(in));
    check_same(reader.head(), r.head);
    CHECK(std::string(reader.body().begin(), reader.body().end()) == r.body);

    for (const auto &header : r.headers) {
        REQUIRE(reader.next_header(f));
        CHECK(f.name == header.name);
        CHECK(f.value == header.value);
    }
    CHECK_FALSE(reader.next_header(f));
    CHECK_FALSE(reader.next_header(f));

    for (const auto &trailer : r.trailers) {
        REQUIRE(reader.next_trailer(f));
        CHECK(f.name == trailer.name);
        CHECK(f.value == trailer.value);
    }
    CHECK_FALSE(reader.next_trailer(f));
    CHECK_FALSE(reader.next_trailer(f));
}


/* Touches every byte that is reachable; AddressSanitizer watches. */
bool
opens(const bytes &in)
{
    response_reader reader;

    if (!reader.open(in)) {
        return false;
    }

    unsigned sum = 0;
    field f;
    auto read = [&](auto part) {
        for (auto c : part) {
            sum += static_cast<unsigned char>(c);
        }
    };

    read(reader.head().status_line);
    read(reader.head().content_type);
    read(reader.head().content_type.substr(0,
                                           reader.head().content_type_length));
    read(reader.head().charset);
    read(reader.head().place);
    read(reader.body());

    while (reader.next_header(f)) {
        read(f.name);
        read(f.value);
    }

    while (reader.next_trailer(f)) {
        read(f.name);
        read(f.value);
    }

    CHECK(reader.head().content_type_length
          <= reader.head().content_type.size());

    volatile unsigned used = sum;
    static_cast<void>(used);
    return true;
}


response
usual()
{
    response r;

    r.head.status = 201;
    r.head.content_type_length = 16;
    r.head.own_location = true;
    r.head.content_length = 13;
    r.head.last_modified = 1700000000;
    r.head.status_line = "201 Created";
    r.head.content_type = "application/json; v=1";
    r.head.charset = "utf-8";
    r.head.place = "@app";
    r.headers = {{"Location", "/pay/7"}, {"X-Empty", ""}};
    r.body = "{\"amount\": 7}";
    r.trailers = {{"Digest", "abc"}};
    return r;
}

}


TEST_CASE("record: round trip", "[record]")
{
    SECTION("a usual response")
    {
        check_round_trip(usual());
    }

    SECTION("nothing but a status")
    {
        response r;

        r.head.status = 204;
        check_round_trip(r);
        CHECK(written(r).size() == 40);
    }

    SECTION("all bytes that can be sent, in every part")
    {
        response r = usual();
        std::string all, line, name;

        for (int c = 0; c < 256; c++) {
            all += static_cast<char>(c);
            line += c == 0 || c == '\r' || c == '\n' ? '-'
                                                     : static_cast<char>(c);
            name += c <= ' ' || c == ':' || c == 0x7f ? '-'
                                                      : static_cast<char>(c);
        }

        const std::string status_line = "201 " + line;

        r.head.status_line = status_line;
        r.head.charset = line;
        r.head.place = all;
        r.head.content_length = 256;
        r.headers = {{name, line}};
        r.body = all;
        r.trailers = {{name, line}};
        check_round_trip(r);
    }

    SECTION("the widest values")
    {
        response r = usual();
        const std::string widest(UINT16_MAX, 'w');
        std::string line = widest;

        line.replace(0, 3, "999");
        r.head.status = 999;
        r.head.content_type_length = UINT16_MAX;
        r.head.content_length = 1 << 20;
        r.head.last_modified = 253402300799;
        r.head.status_line = line;
        r.head.content_type = widest;
        r.head.charset = widest;
        r.head.place = widest;
        r.headers = {{widest, widest + widest}};
        r.body = std::string(1 << 20, 'b');
        check_round_trip(r);
    }

    SECTION("as many fields as there may be")
    {
        response r;

        r.head.status = 200;
        r.headers.assign(max_fields, {"n", ""});
        r.trailers.assign(max_fields, {"n", "v"});
        check_round_trip(r);
    }

    SECTION("no body, but trailers")
    {
        response r = usual();

        r.head.content_length = -1;
        r.body.clear();
        r.headers.clear();
        check_round_trip(r);
    }

    SECTION("fields without value")
    {
        response r = usual();

        r.headers = {{"n", ""}, {"n", ""}};
        r.trailers = {{"m", ""}};
        check_round_trip(r);
    }

    SECTION("any response")
    {
        std::mt19937 random(3);
        auto text = [&](unsigned most) {
            std::string s(random() % (most + 1), 0);

            for (char &c : s) {
                c = static_cast<char>('0' + random() % 10);
            }
            return s;
        };

        for (int round = 0; round < 300; round++) {
            response r;
            std::string line = "299 " + text(20);
            std::string type = text(40);
            std::string charset = text(8);
            std::string place = text(8);

            r.head.status = 299;
            r.head.own_location = random() % 2 == 0;
            r.head.no_server = random() % 2 == 0;
            r.head.last_modified = static_cast<std::int64_t>(random()) - 1;
            r.head.status_line = line;
            r.head.content_type = type;
            r.head.content_type_length = static_cast<std::uint16_t>(
                random() % (type.size() + 1));
            r.head.charset = charset;
            r.head.place = place;
            r.body = text(300);
            r.head.content_length = random() % 2 == 0
                                        ? -1
                                        : static_cast<std::int64_t>(
                                            r.body.size());

            for (unsigned n = random() % 6; n > 0; n--) {
                r.headers.push_back({"n" + text(10), text(30)});
            }
            for (unsigned n = random() % 3; n > 0; n--) {
                r.trailers.push_back({"n" + text(10), text(30)});
            }

            check_round_trip(r);
        }
    }
}


TEST_CASE("record: the bytes of version 1", "[record]")
{
    response r;

    r.head.status = 0x0201;
    r.head.content_type_length = 1;
    r.head.own_location = true;
    r.head.content_length = 0x0102030405060708;
    r.head.last_modified = -1;
    r.head.status_line = "S";
    r.head.content_type = "TT";
    r.head.charset = "CCC";
    r.headers = {{"N", "VV"}};
    r.body = "BODY";
    r.trailers = {{"M", ""}, {"", "W"}};

    const bytes expected = {
        1,    1,    0x01, 0x02, 1,    0,    1,   0,   2, 0, 1, 0,    2,
        0,    3,    0,    8,    7,    6,    5,   4,   3, 2, 1, 0xff, 0xff,
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 4,   0,   0, 0, 0, 0,    0,
        0,    'S',  'T',  'T',  'C',  'C',  'C', 1,   0, 2, 0, 0,    0,
        'N',  'V',  'V',  'B',  'O',  'D',  'Y', 1,   0, 0, 0, 0,    0,
        'M',  0,    0,    1,    0,    0,    0,   'W',
    };

    CHECK(written(r) == expected);

    const bytes place = {2, 0, 'P', 'P'};
    bytes longer = expected;

    r.head.place = "PP";
    longer[1] = 3;
    longer.insert(longer.begin() + 46, place.begin(), place.end());

    CHECK(written(r) == longer);
}


TEST_CASE("record: an encoded head alone has no body yet", "[record]")
{
    /* the buffer is the module's and was used before */

    response_head head;
    bytes out(encoded_size(head), 0xee);
    response_reader reader;
    field f;

    head.status = 200;
    encode(out.data(), head, 0);

    REQUIRE(reader.open(out));
    CHECK(reader.body().empty());
    CHECK_FALSE(reader.next_trailer(f));
}


TEST_CASE("record: what fits the form", "[record]")
{
    const std::string fits(UINT16_MAX, 'x');
    const std::string wide(UINT16_MAX + 1, 'x');
    response_head head;

    CHECK(encodable(head));

    SECTION("status line")
    {
        head.status_line = fits;
        CHECK(encodable(head));
        head.status_line = wide;
        CHECK_FALSE(encodable(head));
    }

    SECTION("content type")
    {
        head.content_type = fits;
        CHECK(encodable(head));
        head.content_type = wide;
        CHECK_FALSE(encodable(head));
    }

    SECTION("content type without its parameters")
    {
        head.content_type = "a/b";
        head.content_type_length = 3;
        CHECK(encodable(head));
        head.content_type_length = 4;
        CHECK_FALSE(encodable(head));
    }

    SECTION("charset")
    {
        head.charset = fits;
        CHECK(encodable(head));
        head.charset = wide;
        CHECK_FALSE(encodable(head));
    }

    SECTION("place")
    {
        head.place = fits;
        CHECK(encodable(head));
        head.place = wide;
        CHECK_FALSE(encodable(head));
    }

    SECTION("field")
    {
        CHECK(encodable(field{}));
        CHECK(encodable(field{fits, wide}));
        CHECK_FALSE(encodable(field{wide, ""}));

        /* only its length is looked at */
        if constexpr (sizeof(std::size_t) > 4) {
            const char *some = wide.data();

            CHECK(encodable(field{"", {some, UINT32_MAX}}));
            CHECK_FALSE(
                encodable(field{"", {some, std::size_t(UINT32_MAX) + 1}}));
        }
    }
}


TEST_CASE("record: cut at every length", "[record]")
{
    const bytes whole = written(usual());

    REQUIRE(opens(whole));

    for (std::size_t size = 0; size < whole.size(); size++) {
        INFO(size);
        CHECK_FALSE(opens({whole.data(), whole.data() + size}));
    }
}


TEST_CASE("record: anything after the end", "[record]")
{
    bytes longer = written(usual());

    longer.push_back(0);
    CHECK_FALSE(opens(longer));

    longer.resize(longer.size() + 1000, 'x');
    CHECK_FALSE(opens(longer));
}


TEST_CASE("record: a head that lies", "[record]")
{
    struct {
        const char *claim;
        std::size_t at;
        bytes value;
    } rows[] = {
        {"version 0", 0, {0}},
        {"version 2", 0, {2}},
        {"an unknown flag", 1, {8}},
        {"an unknown flag beside a known one", 1, {0x81}},
        {"plain type longer than the type", 4, {22, 0}},
        {"plain type much longer than the type", 4, {0xff, 0xff}},
        {"one header fewer", 6, {1, 0}},
        {"one header more", 6, {3, 0}},
        {"many headers", 6, {0xff, 0xff}},
        {"no trailer", 8, {0, 0}},
        {"one trailer more", 8, {2, 0}},
        {"many trailers", 8, {0xff, 0xff}},
        {"long status line", 10, {0xff, 0xff}},
        {"short status line", 10, {0, 0}},
        {"long type", 12, {0xff, 0xff}},
        {"long charset", 14, {0xff, 0xff}},
        {"body one shorter", 32, {12, 0, 0, 0, 0, 0, 0, 0}},
        {"body one longer", 32, {14, 0, 0, 0, 0, 0, 0, 0}},
        {"body of 4G", 32, {0, 0, 0, 0, 1, 0, 0, 0}},
        {"body of 4G and what is there", 32, {13, 0, 0, 0, 1, 0, 0, 0}},
        {"body of all there is", 32, bytes(8, 0xff)},
        {"body that wraps around", 32, {13, 0, 0, 0, 0, 0, 0, 0x80}},

        /* the place: 40 + 11 + 21 + 5 = 77 */
        {"no flag for the place", 1, {1}},
        {"long place", 77, {0xff, 0xff}},
        {"empty place", 77, {0, 0}},

        /* the first header: 77 + 2 + 4 = 83 */
        {"long name", 83, {0xff, 0xff}},
        {"long value", 85, {0xff, 0xff, 0xff, 0xff}},
        {"value of the sign's length", 85, {0, 0, 0, 0x80}},
    };

    const bytes whole = written(usual());

    REQUIRE(whole[77] == 4);
    REQUIRE(whole[83] == 8);

    for (const auto &row : rows) {
        bytes in = whole;

        std::copy(row.value.begin(), row.value.end(),
                  in.begin() + static_cast<std::ptrdiff_t>(row.at));
        INFO(row.claim);
        CHECK_FALSE(opens(in));
    }
}


TEST_CASE("record: what a client cannot be sent", "[record]")
{
    using change = void (*)(response &);

    struct {
        const char *claim;
        change make;
    } rows[] = {
        {"status 0", [](response &r) { r.head.status = 0; }},
        {"status 199", [](response &r) { r.head.status = 199; }},
        {"status 1000", [](response &r) { r.head.status = 1000; }},
        {"another status", [](response &r) { r.head.status = 202; }},
        {"no digits", [](response &r) { r.head.status_line = "OK"; }},
        {"more digits", [](response &r) { r.head.status_line = "2010"; }},
        {"a split line", [](response &r) { r.head.status_line = "201\r\na"; }},
        {"a split type",
         [](response &r) {
             r.head.content_type = "a/b\nc: d";
             r.head.content_type_length = 3;
         }},
        {"a split charset", [](response &r) { r.head.charset = "a\rb"; }},
        {"a length of -2", [](response &r) { r.head.content_length = -2; }},
        {"another length", [](response &r) { r.head.content_length = 14; }},
        {"a body of 304",
         [](response &r) {
             r.head.status = 304;
             r.head.status_line = {};
         }},
        {"the year 10000", [](response &r) { r.head.last_modified++; }},
        {"a date of -2", [](response &r) { r.head.last_modified = -2; }},
        {"no name", [](response &r) { r.headers[0].name = ""; }},
        {"a blank name", [](response &r) { r.headers[0].name = "a b"; }},
        {"a colon", [](response &r) { r.headers[1].name = "a:b"; }},
        {"a split value", [](response &r) { r.headers[1].value = "a\nb"; }},
        {"a split trailer", [](response &r) { r.trailers[0].value = "\r"; }},
        {"a zero byte", [](response &r) { r.headers[0].value.push_back(0); }},
    };

    for (const auto &row : rows) {
        response r = usual();

        r.head.last_modified = 253402300799;
        REQUIRE(opens(written(r)));
        row.make(r);
        INFO(row.claim);
        CHECK_FALSE(opens(written(r)));
    }
}


TEST_CASE("record: a response to HEAD has a length and no body", "[record]")
{
    response r = usual();
    response_reader reader;

    CHECK_FALSE(reader.open(written(r), response_to::head));
    r.body.clear();
    CHECK_FALSE(reader.open(written(r)));
    CHECK(reader.open(written(r), response_to::head));

    r.head.status = 304;
    r.head.status_line = {};
    CHECK(reader.open(written(r)));
}


TEST_CASE("record: lengths that are none together in 32 bits", "[record]")
{
    response_head head;
    bytes in(encoded_size(head));

    head.status = 200;
    encode(in.data(), head, 1);

    const bytes name_and_value = {8, 0, 0xf8, 0xff, 0xff, 0xff};
    in.insert(in.end(), name_and_value.begin(), name_and_value.end());

    CHECK_FALSE(opens(in));
}


TEST_CASE("record: a failed open leaves nothing behind", "[record]")
{
    const bytes whole = written(usual());
    const bytes cut(whole.begin(), whole.end() - 1);
    response_reader reader;
    field f;

    REQUIRE(reader.open(whole));
    REQUIRE_FALSE(reader.open(cut));
    CHECK(reader.head().status == 0);
    CHECK(reader.head().status_line.empty());
    CHECK(reader.body().empty());
    CHECK_FALSE(reader.next_header(f));
    CHECK_FALSE(reader.next_trailer(f));
}


TEST_CASE("record: opened again, read again from the start", "[record]")
{
    const bytes whole = written(usual());
    response_reader reader;
    field f;

    REQUIRE(reader.open(whole));
    while (reader.next_header(f)) {
    }
    REQUIRE(reader.open(whole));
    REQUIRE(reader.next_header(f));
    CHECK(f.name == "Location");
}


TEST_CASE("record: flipped bytes are read within their bounds", "[record]")
{
    const bytes whole = written(usual());
    unsigned opened = 0;

    for (std::size_t at = 0; at < whole.size(); at++) {
        for (unsigned value = 0; value < 256; value++) {
            bytes in = whole;

            in[at] = static_cast<std::uint8_t>(value);
            opened += opens(in);
        }
    }

    /* what is not a length may be anything */
    CHECK(opened > 10000);
}


TEST_CASE("record: random bytes are read within their bounds", "[record]")
{
    std::mt19937 random(4);
    const bytes whole = written(usual());
    unsigned opened = 0;

    for (int round = 0; round < 100000; round++) {
        bytes in(random() % 120);

        for (auto &byte : in) {
            byte = static_cast<std::uint8_t>(random());
        }

        /* past the version, with lengths small enough to be believed */
        for (std::size_t at = 0; at < in.size() && at < 40; at++) {
            in[at] = static_cast<std::uint8_t>(
                at == 0                             ? 1
                : at == 1 || at % 2 == 1 || at > 32 ? 0
                                                    : in[at] % 12);
        }

        opened += opens(in);
    }

    for (int round = 0; round < 100000; round++) {
        bytes in = whole;

        for (unsigned flips = 1 + random() % 4; flips > 0; flips--) {
            in[random() % in.size()] = static_cast<std::uint8_t>(random());
        }
        in.resize(in.size() - random() % 3);
        opened += opens(in);
    }

    CHECK(opened > 1000);
}
