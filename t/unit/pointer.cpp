#include "contract/pointer.h"

#include <catch2/catch.hpp>

#include <memory>
#include <string>
#include <vector>

using namespace idempotency;
using namespace std::string_view_literals;

using segment_list = std::vector<std::string>;


namespace {

/* The segments, or {"refused"} in memory of just the size that is asked for.
 */
segment_list
parsed(std::string_view literal)
{
    std::unique_ptr<char[]> exact(new char[literal.size()]);
    std::string_view text(exact.get(), literal.size());

    literal.copy(exact.get(), literal.size());

    std::size_t most = count_segments(text);
    std::unique_ptr<std::string_view[]> segments(new std::string_view[most]);
    std::unique_ptr<char[]> storage(new char[text.size()]);
    std::size_t count;

    if (!parse_pointer(text, {segments.get(), most},
                       {storage.get(), text.size()}, count))
    {
        return {"refused"};
    }

    return {segments.get(), segments.get() + count};
}

}


TEST_CASE("pointer: segments", "[pointer]")
{
    struct {
        std::string_view text;
        segment_list segments;
    } rows[] = {
        {"/a", {"a"}},
        {"/a/b/c", {"a", "b", "c"}},
        {"/", {""}},
        {"//", {"", ""}},
        {"/a/", {"a", ""}},
        {"//a", {"", "a"}},
        {"/a~1b", {"a/b"}},
        {"/m~0n", {"m~n"}},
        {"/~01", {"~1"}},
        {"/~0~1~1~0", {"~//~"}},
        {"/~1/~0", {"/", "~"}},
        {"/*", {"*"}},
        {"/items/*/price", {"items", "*", "price"}},
        {"/a b", {"a b"}},
        {"/%41", {"%41"}},
        {"/\"", {"\""}},
        {"/a\\b", {"a\\b"}},
        {"/0/-", {"0", "-"}},
        {"/\xc3\xa9", {"\xc3\xa9"}},
        {"/a\0b"sv, {std::string("a\0b", 3)}},

        {"", {"refused"}},
        {"a", {"refused"}},
        {"a/b", {"refused"}},
        {"#/a", {"refused"}},
        {"$.a", {"refused"}},
        {" /a", {"refused"}},
        {"~0", {"refused"}},
        {"/~", {"refused"}},
        {"/a~", {"refused"}},
        {"/~2", {"refused"}},
        {"/~a", {"refused"}},
        {"/~~", {"refused"}},
        {"/~/", {"refused"}},
        {"/~/1", {"refused"}},
        {"/a/~", {"refused"}},
        {"/a~01~", {"refused"}},
    };

    for (const auto &row : rows) {
        INFO(row.text);
        CHECK(parsed(row.text) == row.segments);
    }
}


TEST_CASE("pointer: no more than there is room for", "[pointer]")
{
    std::string_view segments[2];
    char storage[8];
    std::size_t count = 7;

    CHECK_FALSE(parse_pointer("/a/b/c", segments, storage, count));
    CHECK(count == 0);
    CHECK_FALSE(parse_pointer("/a/b", segments, {storage, 3}, count));
    CHECK(parse_pointer("/a/b", segments, {storage, 4}, count));
    CHECK(count == 2);
}


TEST_CASE("pointer: wildcards", "[pointer]")
{
    std::vector<std::string_view> with = {"a", "*", "b"};
    std::vector<std::string_view> without = {"a", "**", "*b", ""};

    CHECK(has_wildcard({with}));
    CHECK_FALSE(has_wildcard({without}));
    CHECK_FALSE(has_wildcard({}));

    CHECK(segment_matches("a", "a"));
    CHECK(segment_matches("*", "a"));
    CHECK(segment_matches("*", ""));
    CHECK(segment_matches("", ""));
    CHECK_FALSE(segment_matches("a", "b"));
    CHECK_FALSE(segment_matches("a", ""));
    CHECK_FALSE(segment_matches("", "a"));
    CHECK_FALSE(segment_matches("a", "*"));
    CHECK_FALSE(segment_matches("1", "01"));
}
