#include "json_body.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>

using namespace idempotency;

/*
 * Random values, spelled at random, are the same however they are spelled;
 * and after any one change they are another.  JSON_SEED=number repeats a run.
 */

namespace {

class dice {
public:
    explicit dice(std::uint64_t seed) : state_(seed) {}

    /* SplitMix64, the same on every machine. */
    std::uint64_t next()
    {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15;

        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }

    int below(int n) { return static_cast<int>(next() % std::uint64_t(n)); }
    bool one_in(int n) { return below(n) == 0; }

private:
    std::uint64_t state_;
};


enum class kind { null, no, yes, number, string, array, object };

using code_points = std::u32string;

struct value {
    kind type = kind::null;

    /* number: digits without zeros at either end; none: it is 0 */
    bool negative = false;
    std::string digits;
    long exponent = 0;

    code_points text;
    std::vector<code_points> names; /* of an object, of each child */
    std::vector<value> children;
};


char32_t
random_code_point(dice &d)
{
    switch (d.below(8)) {
    case 0: return static_cast<char32_t>(d.below(0x20));
    case 1: return U"\"\\/{}[]:, "[d.below(10)];
    case 2: return static_cast<char32_t>(0x80 + d.below(0x700));
    case 3: return static_cast<char32_t>(0x10000 + d.below(0x100000));
    case 4: {
        int c = 0x800 + d.below(0xf000);
        return static_cast<char32_t>(c >= 0xd800 && c < 0xe000 ? 0xfeff : c);
    }
    default: return static_cast<char32_t>('a' + d.below(4));
    }
}


code_points
random_text(dice &d)
{
    code_points text;
    int size = d.one_in(30) ? d.below(200) : d.below(12);

    while (size-- > 0) {
        text += random_code_point(d);
    }

    return text;
}


void
random_number(dice &d, value &v)
{
    int size = d.one_in(10) ? d.below(60) : d.below(6);

    v.type = kind::number;

    for (int i = 0; i < size; i++) {
        bool edge = i == 0 || i == size - 1;

        v.digits += static_cast<char>(edge ? '1' + d.below(9)
                                           : '0' + d.below(10));
    }

    if (size > 0) {
        v.negative = d.one_in(3);
        v.exponent = d.one_in(5) ? d.below(1000) - 500 : d.below(9) - 4;
    }
}


bool
has_name(const value &v, const code_points &name)
{
    return std::find(v.names.begin(), v.names.end(), name) != v.names.end();
}


code_points
new_name(dice &d, const value &v)
{
    code_points name = random_text(d);

    while (has_name(v, name)) {
        name += random_code_point(d);
    }

    return name;
}


value
random_value(dice &d, int depth)
{
    value v;
    int pick = d.below(depth > 0 ? 10 : 6);

    if (pick < 3) {
        v.type = static_cast<kind>(pick);

    } else if (pick == 3) {
        random_number(d, v);

    } else if (pick < 6) {
        v.type = kind::string;
        v.text = random_text(d);

    } else {
        v.type = pick < 8 ? kind::array : kind::object;

        for (int size = d.below(5); size > 0; size--) {
            if (v.type == kind::object) {
                v.names.push_back(new_name(d, v));
            }
            v.children.push_back(random_value(d, depth - 1));
        }
    }

    return v;
}


void
spell_space(dice &d, std::string &out)
{
    while (d.one_in(6)) {
        out += " \t\r\n"[d.below(4)];
    }
}


void
spell_utf8(char32_t c, std::string &out)
{
    auto put = [&](char32_t byte) { out += static_cast<char>(byte); };

    if (c < 0x80) {
        put(c);
    } else if (c < 0x800) {
        put(0xc0 | c >> 6);
        put(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        put(0xe0 | c >> 12);
        put(0x80 | (c >> 6 & 0x3f));
        put(0x80 | (c & 0x3f));
    } else {
        put(0xf0 | c >> 18);
        put(0x80 | (c >> 12 & 0x3f));
        put(0x80 | (c >> 6 & 0x3f));
        put(0x80 | (c & 0x3f));
    }
}


void
spell_unit(dice &d, unsigned unit, std::string &out)
{
    out += "\\u";

    for (int shift = 12; shift >= 0; shift -= 4) {
        const char *digits = d.one_in(2) ? "0123456789abcdef"
                                         : "0123456789ABCDEF";

        out += digits[unit >> shift & 15];
    }
}


void
spell_code_point(dice &d, char32_t c, std::string &out)
{
    static const std::u32string shorts = U"\"\\/\b\f\n\r\t";
    std::size_t at = shorts.find(c);

    if (at != shorts.npos && d.one_in(2)) {
        out += '\\';
        out += "\"\\/bfnrt"[at];

    } else if (c < 0x20 || c == '"' || c == '\\' || d.one_in(8)) {
        if (c >= 0x10000) {
            spell_unit(d, 0xd800 + ((c - 0x10000) >> 10), out);
            spell_unit(d, 0xdc00 + ((c - 0x10000) & 0x3ff), out);
        } else {
            spell_unit(d, c, out);
        }

    } else {
        spell_utf8(c, out);
    }
}


void
spell_text(dice &d, const code_points &text, std::string &out)
{
    out += '"';
    for (char32_t c : text) {
        spell_code_point(d, c, out);
    }
    out += '"';
}


/* digits times ten to the exponent, with the point put anywhere. */
void
spell_number(dice &d, const value &v, std::string &out)
{
    std::string digits = v.digits;
    long exponent = v.exponent;

    if (v.negative || (digits.empty() && d.one_in(3))) {
        out += '-';
    }

    for (int zeros = d.below(4); zeros > 0; zeros--) {
        digits += '0';
        exponent--;
    }

    if (v.digits.empty()) {
        exponent = d.below(200) - 100;
    }

    long fraction = d.below(8);

    if (d.one_in(2)) {
        /* without an exponent, if that is possible */
        while (exponent > 0 && exponent < 40) {
            digits += '0';
            exponent--;
        }
        fraction = exponent > -40 && exponent < 0 ? -exponent : fraction;
    }

    std::size_t least = static_cast<std::size_t>(fraction) + 1;

    if (digits.size() < least) {
        digits.insert(0, least - digits.size(), '0');
    }

    std::size_t point = digits.size() - static_cast<std::size_t>(fraction);
    std::size_t first = std::min(digits.find_first_not_of('0'), point - 1);

    out += digits.substr(first, point - first);
    if (fraction > 0) {
        out += '.' + digits.substr(point);
    }

    exponent += fraction;

    if (exponent != 0 || d.one_in(4)) {
        out += d.one_in(2) ? 'e' : 'E';
        out += exponent < 0 ? "-" : d.one_in(2) ? "+" : "";
        out += d.one_in(4) ? "00" : "";
        out += std::to_string(std::abs(exponent));
    }
}


void spell(dice &d, const value &v, std::string &out);


void
spell_children(dice &d, const value &v, std::string &out)
{
    std::vector<std::size_t> order(v.children.size());

    for (std::size_t i = 0; i < order.size(); i++) {
        order[i] = i;
    }

    if (v.type == kind::object) {
        for (std::size_t i = order.size(); i > 1; i--) {
            std::swap(order[i - 1],
                      order[std::size_t(d.below(static_cast<int>(i)))]);
        }
    }

    for (std::size_t i = 0; i < order.size(); i++) {
        if (i > 0) {
            out += ',';
        }
        spell_space(d, out);
        if (v.type == kind::object) {
            spell_text(d, v.names[order[i]], out);
            spell_space(d, out);
            out += ':';
            spell_space(d, out);
        }
        spell(d, v.children[order[i]], out);
        spell_space(d, out);
    }
}


void
spell(dice &d, const value &v, std::string &out)
{
    switch (v.type) {
    case kind::null: out += "null"; break;
    case kind::no: out += "false"; break;
    case kind::yes: out += "true"; break;
    case kind::number: spell_number(d, v, out); break;
    case kind::string: spell_text(d, v.text, out); break;
    case kind::array:
    case kind::object:
        out += v.type == kind::array ? '[' : '{';
        spell_space(d, out);
        spell_children(d, v, out);
        out += v.type == kind::array ? ']' : '}';
        break;
    }
}


std::string
spelled(dice &d, const value &v)
{
    std::string out;

    spell_space(d, out);
    spell(d, v, out);
    spell_space(d, out);
    return out;
}


bool
same(const value &a, const value &b)
{
    if (a.type != b.type || a.negative != b.negative || a.digits != b.digits
        || a.exponent != b.exponent || a.text != b.text
        || a.children.size() != b.children.size())
    {
        return false;
    }

    for (std::size_t i = 0; i < a.children.size(); i++) {
        std::size_t other = i;

        if (a.type == kind::object) {
            auto found = std::find(b.names.begin(), b.names.end(), a.names[i]);

            if (found == b.names.end()) {
                return false;
            }
            other = static_cast<std::size_t>(found - b.names.begin());
        }

        if (!same(a.children[i], b.children[other])) {
            return false;
        }
    }

    return true;
}


void
change_text(dice &d, code_points &text)
{
    auto at = static_cast<std::size_t>(
        d.below(static_cast<int>(text.size()) + 1));

    if (at == text.size() || d.one_in(3)) {
        text.insert(at, 1, random_code_point(d));
    } else if (d.one_in(2)) {
        text.erase(at, 1);
    } else {
        text[at] = text[at] == 'x' ? 'y' : 'x';
    }
}


void
change_number(dice &d, value &v)
{
    if (v.digits.empty()) {
        v.digits = "1";
        v.exponent = -d.below(500);
        return;
    }

    switch (d.below(4)) {
    case 0: v.negative = !v.negative; break;
    case 1: v.exponent += d.one_in(2) ? 1 : -1; break;
    case 2: v.digits += '1'; break;
    default: {
        char &c =
            v.digits[std::size_t(d.below(static_cast<int>(v.digits.size())))];
        c = c == '7' ? '3' : '7';
    }
    }
}


void
change_children(dice &d, value &v)
{
    auto count = static_cast<int>(v.children.size());
    auto at = static_cast<std::size_t>(d.below(count + 1));
    auto place = static_cast<std::ptrdiff_t>(at);

    if (at == v.children.size()) {
        if (v.type == kind::object) {
            v.names.push_back(new_name(d, v));
        }
        v.children.push_back(random_value(d, 0));

    } else if (d.one_in(2)) {
        v.children.erase(v.children.begin() + place);
        if (v.type == kind::object) {
            v.names.erase(v.names.begin() + place);
        }

    } else if (v.type == kind::object) {
        v.names[at] = new_name(d, v);

    } else {
        std::swap(v.children[at], v.children[0]);
    }
}


/* One change somewhere; it may happen to change nothing. */
void
change(dice &d, value &v)
{
    if (!v.children.empty() && !d.one_in(3)) {
        change(d, v.children[std::size_t(
                      d.below(static_cast<int>(v.children.size())))]);
        return;
    }

    if (d.one_in(5)) {
        v = random_value(d, 1);
        return;
    }

    switch (v.type) {
    case kind::null: v.type = kind::no; break;
    case kind::no: v.type = kind::yes; break;
    case kind::yes: v.type = kind::null; break;
    case kind::number: change_number(d, v); break;
    case kind::string: change_text(d, v.text); break;
    case kind::array:
    case kind::object: change_children(d, v); break;
    }
}


std::uint64_t
seed()
{
    const char *given = std::getenv("JSON_SEED");

    if (given != nullptr) {
        return std::strtoull(given, nullptr, 10);
    }

    return static_cast<std::uint64_t>(
        std::chrono::system_clock::now().time_since_epoch().count());
}

}


TEST_CASE("json: spellings of random values", "[json]")
{
    constexpr int cases = 100000;
    std::uint64_t first = seed();
    json_parser parser;
    int changed_cases = 0;

    INFO("JSON_SEED=" << first);

    for (int i = 0; i < cases; i++) {
        dice d(first + static_cast<std::uint64_t>(i));
        value v = random_value(d, 3);
        std::string one = spelled(d, v);
        std::string other = spelled(d, v);
        std::string expected = json_digest(parser, one);

        if (expected.size() != 32 || json_digest(parser, other) != expected) {
            FAIL("JSON_SEED=" << first + static_cast<std::uint64_t>(i)
                              << " these differ:\n"
                              << one << "\n"
                              << other);
        }

        value changed = v;

        change(d, changed);

        if (same(v, changed)) {
            continue;
        }

        std::string third = spelled(d, changed);
        std::string digest = json_digest(parser, third);

        changed_cases++;

        if (digest.size() != 32 || digest == expected) {
            FAIL("JSON_SEED=" << first + static_cast<std::uint64_t>(i)
                              << " these are the same, or not JSON:\n"
                              << one << "\n"
                              << third);
        }
    }

    CHECK(changed_cases > cases * 9 / 10);
}
