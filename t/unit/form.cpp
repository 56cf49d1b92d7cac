#include "contract/form.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace idempotency;

namespace {

using pairs = std::vector<std::pair<std::string, std::string>>;

const std::string not_form = "(not a form)";


/*
 * The digest as bytes.  The body is copied to the heap in its exact size,
 * where AddressSanitizer sees a step beyond its end.
 */
std::string
digest_of(std::string_view body)
{
    std::vector<char> in(body.begin(), body.end());
    hasher hash;
    digest d;

    hash.start("form");

    form_result result = canonical_form({in.data(), in.size()}, hash);

    REQUIRE(hash.finish(d));

    if (result != form_result::ok) {
        hasher untouched;
        digest none;

        REQUIRE(result == form_result::not_form);
        untouched.start("form");
        REQUIRE(untouched.finish(none));
        REQUIRE(d == none);
        return not_form;
    }

    return std::string(d.begin(), d.end());
}


std::string
digest_of(const pairs &sorted)
{
    hasher hash;
    digest d;

    hash.start("form");
    hash.number(sorted.size());

    for (const auto &[name, value] : sorted) {
        hash.field(name);
        hash.field(value);
    }

    REQUIRE(hash.finish(d));
    return std::string(d.begin(), d.end());
}


/* As canonical_form() says, for the bytes that are used here. */
std::string
root_of(std::string name)
{
    name = name.substr(0, name.find('['));

    for (char &c : name) {
        c = c == '.' || c == ' '   ? '_'
            : c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32)
                                   : c;
    }

    return name;
}


pairs
sorted(pairs form)
{
    std::stable_sort(form.begin(), form.end(),
                     [](const auto &a, const auto &b) {
                         return root_of(a.first) < root_of(b.first);
                     });
    return form;
}

}


TEST_CASE("form: what a body means", "[form]")
{
    struct {
        std::string body;
        pairs expected;
    } rows[] = {
        {"", {}},
        {"&", {}},
        {"&&&", {}},
        {"=", {{"", ""}}},
        {"=&=", {{"", ""}, {"", ""}}},
        {"=&=x", {{"", ""}, {"", "x"}}},
        {"=x&=", {{"", "x"}, {"", ""}}},
        {"a", {{"a", ""}}},
        {"a=", {{"a", ""}}},
        {"a=1", {{"a", "1"}}},
        {"a=1&", {{"a", "1"}}},
        {"&a=1", {{"a", "1"}}},
        {"a=1&b=2", {{"a", "1"}, {"b", "2"}}},
        {"b=2&a=1", {{"a", "1"}, {"b", "2"}}},
        {"b=2&&&a=1", {{"a", "1"}, {"b", "2"}}},
        {"a=2&a=1", {{"a", "2"}, {"a", "1"}}},
        {"a=2&b=3&a=1", {{"a", "2"}, {"a", "1"}, {"b", "3"}}},
        {"a=b=c", {{"a", "b=c"}}},
        {"a==", {{"a", "="}}},
        {"a%3Db=c", {{"a=b", "c"}}},
        {"a=b%26c=d", {{"a", "b&c=d"}}},
        {"a+b=c+d", {{"a b", "c d"}}},
        {"a%20b=c%20d", {{"a b", "c d"}}},
        {"a%2Bb=c%2bd", {{"a+b", "c+d"}}},
        {"%41=%61", {{"A", "a"}}},
        {"%25=%2541", {{"%", "%41"}}},
        {"a=1%3Bb=2", {{"a", "1;b=2"}}},
        {"%00=%ff%FE", {{std::string(1, 0), "\xff\xfe"}}},
        {"\xc3\xa9=%C3%A9", {{"\xc3\xa9", "\xc3\xa9"}}},
        {"a=1\r\n", {{"a", "1\r\n"}}},
        {" a = 1 ", {{" a ", " 1 "}}},
        {"{\"a\":1}", {{"{\"a\":1}", ""}}},

        /* by the bytes of the root, a shorter one before a longer one */
        {"ab=1&a=2&A=3&%ff=4&%00=5",
         {{std::string(1, 0), "5"},
          {"a", "2"},
          {"A", "3"},
          {"ab", "1"},
          {"\xff", "4"}}},
        {"b=1&a[x]=2&a=3&a[]=4",
         {{"a[x]", "2"}, {"a", "3"}, {"a[]", "4"}, {"b", "1"}}},
        {"ab=1&a.b=2&a+b=3&a_B=4&a=5",
         {{"a", "5"}, {"a.b", "2"}, {"a b", "3"}, {"a_B", "4"}, {"ab", "1"}}},
        {"b=1&%5Bx%5D=2&=3", {{"[x]", "2"}, {"", "3"}, {"b", "1"}}},
        {"%61b=1&a%62=2&ab=3", {{"ab", "1"}, {"ab", "2"}, {"ab", "3"}}},
    };

    for (const auto &row : rows) {
        INFO(row.body);
        CHECK(sorted(row.expected) == row.expected);
        CHECK(digest_of(row.body) == digest_of(row.expected));
    }
}


TEST_CASE("form: what is no form", "[form]")
{
    const std::string bodies[] = {
        "%",
        "a=%",
        "a=%4",
        "a=%4&b=1",
        "a=%&41=b",
        "%4=1",
        "a%=1",
        "a=%zz",
        "a=%4g",
        "a=%g4",
        "a=%%41",
        "a=%+1",
        "a=% 1",
        "a=%-1",
        "a=%0x1",
        "a=1&b=%",
        "a=%@0",
        "a=%0`",
        "a=%/0",
        "a=%0:",
        "a=%G0",
        "a=%\xc1"
        "0",
        "a;b",
        "a=1;b=2",
        ";",
        "a=1&;",
        "a=1&b;=2",
        std::string("a=%4\0", 5),
    };

    for (const auto &body : bodies) {
        INFO(body);
        CHECK(digest_of(body) == not_form);
    }
}


TEST_CASE("form: same and different", "[form]")
{
    struct {
        bool same;
        std::string a;
        std::string b;
    } rows[] = {
        {true, "a=1&b=2", "b=2&a=1"},
        {true, "a=1&b=2", "b=%32&%61=1"},
        {true, "a=1&b=2&a=3", "b=2&a=1&a=3"},
        {true, "a+b=1", "a%20b=1"},
        {true, "a", "a="},
        {true, "a=1", "&a=1&&"},
        {true, "a=%c3%a9", "a=%C3%A9"},
        {true, "a[]=1&a[]=2&b[x]=3", "b[x]=3&a[]=1&a[]=2"},
        {true, "a%5B0%5D=x&b=1", "b=1&a[0]=x"},

        /* what applications put together is in its order */
        {false, "a[0]=x&a[]=y", "a[]=y&a[0]=x"},
        {false, "items[][name]=A&items[][price]=1&items[][name]=B",
         "items[][name]=A&items[][name]=B&items[][price]=1"},
        {false, "a.b=1&a_b=2", "a_b=2&a.b=1"},
        {false, "a+b=1&a_b=2", "a_b=2&a%20b=1"},
        {false, "Amount=1&amount=2", "amount=2&Amount=1"},
        {false, "a=1&a[]=2", "a[]=2&a=1"},
        {false, "A.b[x]=1&a_b=2", "a_b=2&A.b[x]=1"},

        {false, "a=1&a=2", "a=2&a=1"},
        {false, "a=1", "a=1&a=1"},
        {false, "a=1", "A=1"},
        {false, "a=1", "a=1.0"},
        {false, "a=1", "a=01"},
        {false, "a=1", "a=1+"},
        {false, "a=1&b=2", "a=2&b=1"},
        {false, "a=1&b=2", "a=1%26b=2"},
        {false, "ab=c", "a=bc"},
        {false, "a=b&c=", "a=&bc="},
        {false, "a=b", "a=&b="},
        {false, "a=b&c=d", "a=c&b=d"},
        {false, "=", ""},
        {false, "=a", "a="},
        {false, "a=%2541", "a=%41"},
        {false, "a=+", "a=%2B"},
        {false, "a=%00", "a="},
        {false, "a%00=", "a="},
    };

    for (const auto &row : rows) {
        INFO(row.a << " | " << row.b);
        REQUIRE(digest_of(row.a) != not_form);
        REQUIRE(digest_of(row.b) != not_form);
        CHECK((digest_of(row.a) == digest_of(row.b)) == row.same);
    }
}


TEST_CASE("form: as many pairs as a form can have", "[form]")
{
    const std::size_t count = max_form_pairs;
    std::string body;
    pairs expected(count, {"a", ""});

    for (std::size_t i = 0; i < count; i++) {
        body += "a&";
    }

    CHECK(digest_of(body) == digest_of(expected));
    CHECK(digest_of(body + "a") == not_form);
    CHECK(digest_of(body + "&&") == digest_of(expected));
    CHECK(digest_of(std::string(1000000, '&')) == digest_of(""));
    CHECK(digest_of(std::string(1000000, '=')) != not_form);
}


namespace {

struct writer {
    std::mt19937 random;


    std::string text(unsigned most)
    {
        static const std::string alphabet("abA[._=&+% ;\0\xff\xc3", 15);
        std::string s(random() % (most + 1), 0);

        for (char &c : s) {
            c = alphabet[random() % alphabet.size()];
        }

        return s;
    }


    std::string spelled(std::string_view raw)
    {
        std::string out;
        char hex[4];

        for (char c : raw) {
            bool must = std::string_view("=&+%;").find(c) != std::string::npos;

            if (c == ' ' && random() % 2 == 0) {
                out += '+';
            } else if (must || random() % 3 == 0) {
                const char *form = random() % 2 == 0 ? "%%%02x" : "%%%02X";

                std::snprintf(hex, sizeof(hex), form, c & 0xff);
                out += hex;
            } else {
                out += c;
            }
        }

        return out;
    }


    /* In any order that keeps the order within each root. */
    std::string spelled(pairs form)
    {
        std::string body;

        while (!form.empty()) {
            std::size_t any = random() % form.size();
            auto first = std::find_if(
                form.begin(), form.end(), [&](const auto &p) {
                    return root_of(p.first) == root_of(form[any].first);
                });

            body += std::string(random() % 8 == 0, '&')
                    + spelled(first->first);
            if (!first->second.empty() || first->first.empty()
                || random() % 2 == 0) {
                body += "=" + spelled(first->second);
            }
            body += "&";
            form.erase(first);
        }

        return body;
    }
};


/* Something else is meant afterwards. */
void
change(pairs &form, writer &w)
{
    std::size_t at = w.random() % form.size();

    switch (w.random() % 5) {
    case 0: form[at].first += 'x'; break;
    case 1: form[at].second += 'x'; break;
    case 2: form.erase(form.begin() + static_cast<std::ptrdiff_t>(at)); break;
    case 3: form.push_back({"", ""}); break;
    default: form[at] = {form[at].second + 'y', form[at].first};
    }
}

}


TEST_CASE("form: any spelling is the same, any change is not", "[form]")
{
    writer w{std::mt19937(6)};

    for (int round = 0; round < 30000; round++) {
        pairs form;

        for (unsigned n = 1 + w.random() % 5; n > 0; n--) {
            form.push_back({w.text(3), w.text(6)});
        }

        std::string one = w.spelled(form);
        std::string other = w.spelled(form);
        std::string expected = digest_of(sorted(form));

        INFO(one << " | " << other);
        REQUIRE(digest_of(one) == expected);
        REQUIRE(digest_of(other) == expected);

        change(form, w);
        other = w.spelled(form);

        INFO(other);
        REQUIRE(digest_of(other) == digest_of(sorted(form)));
        REQUIRE(digest_of(other) != expected);
    }
}
