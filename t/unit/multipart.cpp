#include "contract/multipart.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

using namespace idempotency;

namespace {

const std::string not_multipart = "(not multipart)";


struct part {
    std::vector<std::pair<std::string, std::string>> header;
    std::string content;
};


using parts = std::vector<part>;


/*
 * The digest as bytes.  Each piece is copied to the heap in its exact size,
 * where AddressSanitizer sees a step beyond its end.
 */
std::string
digest_of(std::string_view boundary, const std::vector<std::string> &pieces)
{
    static multipart_hasher multipart;
    hasher hash;
    digest d;

    multipart.start(boundary);

    for (const std::string &piece : pieces) {
        std::vector<char> in(piece.begin(), piece.end());

        multipart.feed({in.data(), in.size()});
    }

    hash.start("multipart");

    multipart_result result = multipart.finish(hash);

    REQUIRE(result != multipart_result::no_memory);
    REQUIRE(hash.finish(d));

    if (result == multipart_result::not_multipart) {
        hasher untouched;
        digest none;

        untouched.start("multipart");
        REQUIRE(untouched.finish(none));
        REQUIRE(d == none);
        return not_multipart;
    }

    return std::string(d.begin(), d.end());
}


std::string
digest_of(std::string_view boundary, const std::string &body)
{
    return digest_of(boundary, std::vector<std::string>{body});
}


std::string
digest_of(std::string_view body)
{
    return digest_of("b", std::string(body));
}


/* The bytes that are hashed, from parts whose fields are sorted. */
std::string
digest_of(const parts &expected)
{
    hasher hash, all, content;
    digest d;

    all.start("idempotency multipart 1");

    for (const part &p : expected) {
        all.number(p.header.size());

        for (const auto &[name, value] : p.header) {
            all.field(name);
            all.field(value);
        }

        content.start("idempotency part 1");
        content.bytes(p.content.data(), p.content.size());
        REQUIRE(content.finish(d));
        all.bytes(d.data(), d.size());
    }

    REQUIRE(all.finish(d));
    hash.start("multipart");
    hash.number(expected.size());
    hash.bytes(d.data(), d.size());
    REQUIRE(hash.finish(d));
    return std::string(d.begin(), d.end());
}


std::vector<std::string>
bytewise(const std::string &body)
{
    std::vector<std::string> pieces;

    for (char c : body) {
        pieces.emplace_back(1, c);
    }

    return pieces;
}


/* Of one part "a" with this content. */
std::string
with_content(const std::string &content)
{
    return "--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n"
           + content + "\r\n--b--\r\n";
}


std::string
with_header(const std::string &header)
{
    return "--b\r\n" + header + "\r\n\r\n1\r\n--b--\r\n";
}


part
field_a(const std::string &content)
{
    return {{{"content-disposition", "form-data; name=\"a\""}}, content};
}

}


TEST_CASE("multipart: what a body means", "[multipart]")
{
    struct {
        std::string body;
        parts expected;
    } rows[] = {
        {"--b--", {}},
        {"--b--\r\n", {}},
        {"\r\n--b-- \t \r\n", {}},
        {with_content("1"), {field_a("1")}},
        {with_content(""), {field_a("")}},
        {"\r\n" + with_content("1"), {field_a("1")}},
        {"--b \t\r\ncontent-DISPOSITION:form-data; name=\"a\" \t\r\n\r\n1"
         "\r\n--b-- ",
         {field_a("1")}},
        {"--b\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n--b\t"
         "\r\nContent-Disposition:\tform-data; name=\"a\"\r\n\r\n2\r\n--b--",
         {field_a("1"), field_a("2")}},
        {with_header("X:\r\nContent-Type: text/plain; Charset=\"x\"\r\n"
                     "content-disposition: form-data; name=\"f\"; "
                     "filename=\"A \xc3\xa9\tb: c\"\r\nA-b_c: :  : "),
         {{{{"a-b_c", ":  :"},
            {"content-disposition",
             "form-data; name=\"f\"; filename=\"A \xc3\xa9\tb: c\""},
            {"content-type", "text/plain; Charset=\"x\""},
            {"x", ""}},
           "1"}}},
        {with_header("x: 2\r\nCONTENT-DISPOSITION: a\r\nX: 1\r\nx: 2"),
         {{{{"content-disposition", "a"}, {"x", "2"}, {"x", "1"}, {"x", "2"}},
           "1"}}},
    };

    for (const auto &row : rows) {
        INFO(row.body);
        CHECK(digest_of(row.body) == digest_of(row.expected));
        CHECK(digest_of("b", bytewise(row.body)) == digest_of(row.expected));
    }
}


TEST_CASE("multipart: content that is nearly a boundary", "[multipart]")
{
    const std::string contents[] = {
        "\r",
        "\n",
        "\r\n",
        "\n\r",
        "\r\r\n",
        "\r\n\r",
        "\r\n\r\n",
        "\r\n\n",
        "\r\n-",
        "\r\n--",
        "\r\n--a",
        "\r\n-b",
        "\r\n---b",
        "\r\n--\r\n--",
        "\r\n-\r\n--",
        "\r\n--\r",
        "\r\n--\n",
        "\n--",
        "\r--",
        "\r-\r",
        "-",
        "--",
        "--a",
        "--\r\n",
        "x--b",
        "x--b--",
        "--x\r\n--\r\n-",
        " --b",
        "\r\n --b",
        "\r\n--B",
        "\r\n---",
        "\t\r\n\r\r\n\n\r\n-",
        std::string("\0\r\0\n\0", 5),
    };

    for (const auto &content : contents) {
        const std::string body = with_content(content);
        const std::string expected = digest_of(parts{field_a(content)});

        INFO(content);
        CHECK(digest_of(body) == expected);
        CHECK(digest_of("b", bytewise(body)) == expected);
    }
}


TEST_CASE("multipart: what is not multipart", "[multipart]")
{
    const std::string lines64 = [] {
        std::string lines = "Content-Disposition: a";

        for (int i = 1; i < 64; i++) {
            lines += "\r\na: b";
        }
        return lines;
    }();

    struct {
        const char *claim;
        std::string body;
    } rows[] = {
        {"nothing", ""},
        {"a CRLF", "\r\n"},
        {"no boundary", "a=1"},
        {"a preamble", "x\r\n" + with_content("1")},
        {"an empty line more", "\r\n\r\n" + with_content("1")},
        {"a line feed before", "\n" + with_content("1")},
        {"a blank before", " " + with_content("1")},
        {"an epilogue", with_content("1") + "x"},
        {"a line end more", with_content("1") + "\r\n"},
        {"half a line end", "--b--\r"},
        {"a line feed after", "--b--\n"},
        {"something after the end", "--b--x"},
        {"something after the padding", "--b-- x"},
        {"a second body", with_content("1") + with_content("1")},
        {"another boundary", "--c--"},
        {"a longer boundary", "--bb--"},
        {"one dash", "-b--"},
        {"not closed", "--b"},
        {"half closed", "--b-"},
        {"closed wrongly", "--b-x"},
        {"closed after padding", "--b --"},
        {"a boundary only", "--b\r\n"},
        {"a boundary line with a bare feed", "--b\nContent-Disposition: a"
                                             "\r\n\r\n1\r\n--b--"},
        {"a boundary line with a bare return",
         "--b\rContent-Disposition: a\r\n\r\n1\r\n--b--"},
        {"text after the boundary",
         "--b x\r\nContent-Disposition: a\r\n\r\n1\r\n--b--"},
        {"no header", "--b\r\n\r\n1\r\n--b--"},
        {"no header, but an empty line more", "--b\r\n\r\n\r\n1\r\n--b--"},
        {"an empty line before the header",
         "--b\r\n\r\nContent-Disposition: a\r\n\r\n1\r\n--b--"},
        {"no disposition", with_header("Content-Type: a")},
        {"another disposition", with_header("Content-Dispositions: a")},
        {"a line without a colon", with_header("Content-Disposition: a\r\nx")},
        {"a line without a name", with_header("Content-Disposition: a\r\n:")},
        {"a blank before the colon", with_header("Content-Disposition : a")},
        {"a blank before the name", with_header(" Content-Disposition: a")},
        {"a folded line", with_header("Content-Disposition: a;\r\n b: c")},
        {"a name that is none", with_header("Content-Disposition: a\r\n@: b")},
        {"a name of other letters",
         with_header("Content-Disposition: a\r\n\xc3\xa9: b")},
        {"a bare feed in a header",
         with_header("Content-Disposition: a\nb: c")},
        {"a bare return in a header",
         with_header("Content-Disposition: a\rb: c")},
        {"bare feeds throughout", "--b\nContent-Disposition: a\n\n1\n--b--\n"},
        {"a header ended by bare feeds",
         "--b\r\nContent-Disposition: a\n\n1\r\n--b--\r\n"},
        {"a control character in a header",
         with_header(std::string("Content-Disposition: a\0", 23))},
        {"a deleted character in a header",
         with_header("Content-Disposition: a\x7f")},
        {"too many lines", with_header(lines64 + "\r\na: b")},
        {"no content", "--b\r\nContent-Disposition: a\r\n\r\n--b--"},
        {"no end of the header", "--b\r\nContent-Disposition: a\r\n--b--"},
        {"content cut", with_content("1").substr(0, 55)},
        {"a boundary at the start of content", with_content("--b")},
        {"a boundary after a bare feed", with_content("1\n--b")},
        {"a boundary after a bare feed at the start", with_content("\n--b")},
        {"a boundary after a bare return", with_content("1\r--b")},
        {"a boundary after two feeds", with_content("1\r\n\n--b")},
        {"a boundary after two returns", with_content("1\r\r--b")},
        {"a boundary that goes on", with_content("1\r\n--bb\r\n2")},
        {"a boundary that goes on with a dash", with_content("1\r\n--b-\r\n")},
    };

    REQUIRE(digest_of(with_header(lines64)) != not_multipart);

    for (const auto &row : rows) {
        INFO(row.claim);
        CHECK(digest_of(row.body) == not_multipart);
        CHECK(digest_of("b", bytewise(row.body)) == not_multipart);
    }
}


TEST_CASE("multipart: a boundary that looks like a field", "[multipart]")
{
    const std::string body = "--a:b\r\nContent-Disposition: x\r\n";

    CHECK(digest_of("a:b", body + "\r\n1\r\n--a:b--") != not_multipart);
    CHECK(digest_of("a:b", body + "--a:c\r\n\r\n1\r\n--a:b--")
          != not_multipart);
    CHECK(digest_of("a:b", body + "--a:b\r\n\r\n1\r\n--a:b--")
          == not_multipart);
    CHECK(digest_of("a:b", body + "--a:bc\r\n\r\n1\r\n--a:b--")
          == not_multipart);
}


TEST_CASE("multipart: which boundaries there are", "[multipart]")
{
    auto body = [](const std::string &b) {
        return "--" + b + "\r\nContent-Disposition: a\r\n\r\n\r\n-\r\n--\r\n--"
               + b.substr(0, b.size() - 1) + "\r\n--" + b + "--\r\n";
    };
    const std::string longest(70, '-');

    for (const std::string good : {"b", "-", "--", "'()+_,-./:=? b", "a b"}) {
        INFO(good);
        CHECK(digest_of(good, body(good)) != not_multipart);
        CHECK(digest_of(good, bytewise(body(good)))
              == digest_of(good, body(good)));
    }

    CHECK(digest_of(longest, bytewise(body(longest))) != not_multipart);

    for (const std::string bad :
         {"", " ", "b ", "b\r\n", "\n", "b*", "\xc3\xa9"}) {
        INFO(bad);
        CHECK(digest_of(bad, "--" + bad + "--") == not_multipart);
    }

    CHECK(digest_of(longest + "b", "--" + longest + "b--") == not_multipart);
}


TEST_CASE("multipart: the longest header", "[multipart]")
{
    const std::string line = "Content-Disposition: ";
    const std::string fits(multipart_hasher::max_header - line.size() - 4,
                           'x');
    const std::string body = with_header(line + fits);
    const std::string wider = with_header(line + fits + 'x');

    CHECK(digest_of(body) != not_multipart);
    CHECK(digest_of("b", bytewise(body)) == digest_of(body));
    CHECK(digest_of(wider) == not_multipart);
    CHECK(digest_of("b", bytewise(wider)) == not_multipart);
    CHECK(digest_of(with_header(line + std::string(100000, 'x')))
          == not_multipart);
}


TEST_CASE("multipart: same and different", "[multipart]")
{
    const std::string one = "Content-Disposition: form-data; name=\"a\"";

    struct {
        bool same;
        std::string a;
        std::string b;
    } rows[] = {
        {true, with_header(one), with_header(one + " \t")},
        {true, with_header(one + "\r\nA: 1"), with_header("a: 1\r\n" + one)},
        {true, with_header(one + "\r\nX: 1\r\nX: 2"),
         with_header("x: 1\r\n" + one + "\r\nx:2")},

        {false, with_header(one), with_header(one + ";")},
        {false, with_header(one),
         with_header("Content-Disposition: form-data; name=\"A\"")},
        {false, with_header(one),
         with_header("Content-Disposition: form-data;  name=\"a\"")},
        {false, with_header(one), with_header(one + "\r\n" + one)},
        {false, with_header(one), with_header(one + "; filename=\"x\"")},
        {false, with_header(one + "; filename=\"x\""),
         with_header(one + "; filename=\"y\"")},
        {false, with_header(one), with_header(one + "\r\nContent-Type: a")},
        {false, with_header(one + "\r\nContent-Type: b"),
         with_header(one + "\r\nContent-Type: a")},
        {false, with_header(one + "\r\nX: 1\r\nX: 2"),
         with_header(one + "\r\nX: 2\r\nX: 1")},
        {false, with_header(one + "\r\nXY: Z"),
         with_header(one + "\r\nX: YZ")},
        {false, with_content("1"), with_content("1 ")},
        {false, with_content("1"), with_content("1\r\n")},
        {false, with_content("1"), with_content("\r\n1")},
        {false, with_content("1\r\n"), with_content("1\n")},
        {false, with_content(""), "--b--"},
    };

    for (const auto &row : rows) {
        INFO(row.a << " | " << row.b);
        REQUIRE(digest_of(row.a) != not_multipart);
        REQUIRE(digest_of(row.b) != not_multipart);
        CHECK((digest_of(row.a) == digest_of(row.b)) == row.same);
    }
}


TEST_CASE("multipart: split at every two places", "[multipart]")
{
    const std::string boundary = "-b-";
    const std::string body =
        "\r\n---b-\r\nContent-Disposition: a\r\nX: y\r\n\r\n1\r\r\n---b\r\n"
        "---\n\r\n---b- \r\nContent-Disposition: b\r\n\r\n\r\n---b---\r\n";
    const std::string expected = digest_of(boundary, body);

    REQUIRE(expected != not_multipart);
    CHECK(digest_of(boundary, bytewise(body)) == expected);

    for (std::size_t i = 0; i <= body.size(); i++) {
        for (std::size_t j = i; j <= body.size(); j++) {
            std::vector<std::string> pieces = {
                body.substr(0, i), body.substr(i, j - i), body.substr(j)};

            if (digest_of(boundary, pieces) != expected) {
                FAIL("split at " << i << " and " << j);
            }
        }
    }
}


TEST_CASE("multipart: cut at every length", "[multipart]")
{
    const std::string body = with_content("1\r\n--\r\n");

    REQUIRE(digest_of(body) != not_multipart);

    for (std::size_t size = 0; size < body.size() - 2; size++) {
        INFO(size);
        CHECK(digest_of(body.substr(0, size)) == not_multipart);
    }

    CHECK(digest_of(body.substr(0, body.size() - 2)) == digest_of(body));
    CHECK(digest_of(body.substr(0, body.size() - 1)) == not_multipart);
}


TEST_CASE("multipart: the life of a hasher", "[multipart]")
{
    auto multipart = std::make_unique<multipart_hasher>();
    const std::string body = with_content("1");
    hasher hash;
    digest first, second;

    SECTION("never started")
    {
        CHECK_FALSE(multipart->feed(body));
        CHECK(multipart->finish(hash) == multipart_result::not_multipart);
    }

    SECTION("finished once, started again")
    {
        multipart->start("b");
        CHECK(multipart->feed(body));
        hash.start("");
        CHECK(multipart->finish(hash) == multipart_result::ok);
        REQUIRE(hash.finish(first));
        CHECK(multipart->finish(hash) == multipart_result::not_multipart);

        multipart->start("b");
        CHECK(multipart->feed(body.substr(0, 30)));

        multipart->start("b");
        CHECK(multipart->feed(body));
        CHECK(multipart->feed(""));
        hash.start("");
        CHECK(multipart->finish(hash) == multipart_result::ok);
        REQUIRE(hash.finish(second));
        CHECK(first == second);
    }

    SECTION("it says when nothing can help any more")
    {
        multipart->start("b");
        CHECK(multipart->feed("--b"));
        CHECK_FALSE(multipart->feed("x"));
        CHECK_FALSE(multipart->feed(""));
        CHECK_FALSE(multipart->feed("\r\n--b--"));
        CHECK(multipart->finish(hash) == multipart_result::not_multipart);
    }
}


namespace {

struct writer {
    std::mt19937 random;

    std::string text(std::string_view alphabet, unsigned most)
    {
        std::string s(random() % (most + 1), 0);

        for (char &c : s) {
            c = alphabet[random() % alphabet.size()];
        }

        return s;
    }


    parts any_parts()
    {
        parts made;

        for (unsigned n = 1 + random() % 3; n > 0; n--) {
            part p;

            p.header.push_back({"content-disposition", text("ab;=", 4)});
            for (unsigned m = random() % 3; m > 0; m--) {
                p.header.push_back({"x" + text("-y", 1), text("ab:\"", 3)});
            }
            std::stable_sort(p.header.begin(), p.header.end(),
                             [](const auto &a, const auto &b) {
                                 return a.first < b.first;
                             });

            p.content = text("\r\n--12", 24);
            made.push_back(p);
        }

        return made;
    }


    std::string blanks() { return random() % 2 == 0 ? "" : text(" \t", 3); }


    std::string header(part p)
    {
        std::string lines;

        while (!p.header.empty()) {
            std::size_t any = random() % p.header.size();
            auto first = std::find_if(
                p.header.begin(), p.header.end(),
                [&](const auto &f) { return f.first == p.header[any].first; });

            for (char c : first->first) {
                bool upper = c >= 'a' && random() % 2 == 0;

                lines += static_cast<char>(upper ? c - 0x20 : c);
            }
            lines += ":" + blanks() + first->second + blanks() + "\r\n";
            p.header.erase(first);
        }

        return lines;
    }


    /* Any spelling; the boundary has a letter that is in no content. */
    std::string spelled(const parts &from, const std::string &boundary)
    {
        std::string body = random() % 2 == 0 ? "" : "\r\n";

        body += "--" + boundary;

        for (const part &p : from) {
            body += blanks() + "\r\n" + header(p) + "\r\n" + p.content
                    + "\r\n--" + boundary;
        }

        return body + "--" + blanks() + (random() % 2 == 0 ? "" : "\r\n");
    }


    std::vector<std::string> pieces(const std::string &body)
    {
        std::vector<std::string> split;

        for (std::size_t at = 0; at < body.size();) {
            std::size_t size = 1 + random() % (random() % 2 == 0 ? 3 : 40);

            split.push_back(body.substr(at, size));
            at += size;
        }

        return split;
    }
};


/* Something else is meant afterwards. */
void
change(parts &from, writer &w)
{
    std::size_t at = w.random() % from.size();
    part &p = from[at];

    switch (w.random() % 5) {
    case 0: p.content += 'x'; break;
    case 1: p.content.insert(0, "\r\n"); break;
    case 2: p.header.back().second += 'x'; break;
    case 3: p.header.push_back({"y", ""}); break;
    default: from.push_back(p);
    }
}

}


TEST_CASE("multipart: any spelling is the same, any change is not",
          "[multipart]")
{
    writer w{std::mt19937(7)};

    for (int round = 0; round < 20000; round++) {
        parts from = w.any_parts();
        const std::string expected = digest_of(from);

        /* the first dashes of these are in the contents too */
        const std::string boundary = w.text("-12", 8) + "z";
        std::string body = w.spelled(from, boundary);

        INFO(boundary << '\n' << body);
        REQUIRE(digest_of(boundary, body) == expected);
        REQUIRE(digest_of(boundary, w.pieces(body)) == expected);

        change(from, w);
        body = w.spelled(from, boundary);
        REQUIRE(digest_of(boundary, w.pieces(body)) != expected);
        REQUIRE(digest_of(boundary, body) == digest_of(from));
    }
}
