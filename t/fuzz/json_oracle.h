#pragma once

#include "contract/pointer.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

/*
 * Another reader of JSON, to compare with: slow, simple, straight from RFC
 * 8259 and from what contract/json.h says about the form.
 */
namespace oracle {

struct node {
    char type = 0; /* { [ " or that of another value */
    std::string form;
    std::string text; /* of a string */
    std::map<std::string, node> members;
    std::vector<node> elements;
    std::size_t begin = 0;
    std::size_t end = 0;
};


class reader {
public:
    explicit reader(std::string_view text) : text_(text) {}

    std::optional<node> document()
    {
        node n;

        if (!is_utf8() || !value(n, 0)) {
            return std::nullopt;
        }

        space();
        return at_ == text_.size() ? std::optional<node>(n) : std::nullopt;
    }

private:
    bool is_utf8() const
    {
        for (std::size_t i = 0; i < text_.size();) {
            unsigned lead = static_cast<unsigned char>(text_[i++]);
            unsigned more = lead < 0x80   ? 0
                            : lead < 0xc2 ? 9
                            : lead < 0xe0 ? 1
                            : lead < 0xf0 ? 2
                            : lead < 0xf5 ? 3
                                          : 9;
            unsigned code = more == 0 ? lead : lead & (0x3fU >> more);

            if (more == 9 || text_.size() - i < more) {
                return false;
            }

            for (unsigned k = 0; k < more; k++) {
                unsigned c = static_cast<unsigned char>(text_[i++]);

                if (c >> 6 != 2) {
                    return false;
                }
                code = code << 6 | (c & 0x3f);
            }

            if ((more == 2 && code < 0x800) || (more == 3 && code < 0x10000)
                || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
            {
                return false;
            }
        }

        return true;
    }

    char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

    bool take(char c)
    {
        if (at_ == text_.size() || text_[at_] != c) {
            return false;
        }
        at_++;
        return true;
    }

    void space()
    {
        while (take(' ') || take('\t') || take('\n') || take('\r')) {
        }
    }

    bool value(node &n, int depth)
    {
        space();
        n.type = peek();
        n.begin = at_;

        bool good = n.type == '{'   ? object(n, depth + 1)
                    : n.type == '[' ? array(n, depth + 1)
                    : n.type == '"' ? string(n.text)
                    : n.type == 'n' ? word("null")
                    : n.type == 't' ? word("true")
                    : n.type == 'f' ? word("false")
                                    : number(n.form);

        n.end = at_;
        return good;
    }

    bool object(node &n, int depth)
    {
        at_++;
        space();

        if (depth > 512 || take('}')) {
            return depth <= 512;
        }

        do {
            std::string name;
            node child;

            space();
            if (!string(name)) {
                return false;
            }
            space();
            if (!take(':') || !value(child, depth)
                || !n.members.emplace(name, std::move(child)).second)
            {
                return false;
            }
            space();
        } while (take(','));

        return take('}');
    }

    bool array(node &n, int depth)
    {
        at_++;
        space();

        if (depth > 512 || take(']')) {
            return depth <= 512;
        }

        do {
            n.elements.emplace_back();
            if (!value(n.elements.back(), depth)) {
                return false;
            }
            space();
        } while (take(','));

        return take(']');
    }

    bool word(std::string_view w)
    {
        bool good = text_.substr(at_, w.size()) == w;

        at_ += good ? w.size() : 0;
        return good;
    }

    std::string digits()
    {
        std::string all;

        while (peek() >= '0' && peek() <= '9') {
            all += text_[at_++];
        }
        return all;
    }

    bool number(std::string &form)
    {
        bool negative = take('-');
        bool below = false;
        std::string whole = digits();
        std::string fraction;
        std::string power = "0";

        if (whole.empty() || (whole.size() > 1 && whole[0] == '0')) {
            return false;
        }
        if (take('.') && (fraction = digits()).empty()) {
            return false;
        }
        if (take('e') || take('E')) {
            below = take('-');
            if (!below) {
                take('+');
            }
            if ((power = digits()).empty()) {
                return false;
            }
        }
        return decimal(negative, whole + fraction, fraction.size(), below,
                       power, form);
    }

    static bool decimal(bool negative, std::string all, std::size_t places,
                        bool below, std::string power, std::string &form)
    {
        power.erase(0, std::min(power.find_first_not_of('0'), power.size()));
        all.erase(0, std::min(all.find_first_not_of('0'), all.size()));

        if (all.empty()) {
            form = "0;";
            return true;
        }
        if (power.size() > 18) {
            return false;
        }

        long long exponent = power.empty() ? 0 : std::stoll(power);

        exponent = below ? -exponent : exponent;
        exponent -= static_cast<long long>(places);

        for (; all.back() == '0'; all.pop_back()) {
            exponent++;
        }

        form = (negative ? "-" : "") + all;
        form += exponent != 0 ? "e" + std::to_string(exponent) + ";" : ";";
        return true;
    }

    bool unit(unsigned &u)
    {
        u = 0;

        for (int i = 0; i < 4; i++) {
            std::size_t digit =
                std::string_view("0123456789abcdefABCDEF").find(peek());

            if (at_ == text_.size() || digit == std::string_view::npos) {
                return false;
            }
            at_++;
            u = u * 16 + static_cast<unsigned>(digit > 15 ? digit - 6 : digit);
        }
        return true;
    }

    bool escape(std::string &out)
    {
        static constexpr std::string_view names = "\"\\/bfnrt";
        static constexpr std::string_view values = "\"\\/\b\f\n\r\t";
        unsigned code;
        unsigned low;

        if (!take('u')) {
            std::size_t which = names.find(peek());

            if (at_ == text_.size() || which == names.npos) {
                return false;
            }
            out += values[which];
            at_++;
            return true;
        }

        if (!unit(code) || (code >= 0xdc00 && code < 0xe000)) {
            return false;
        }
        if (code >= 0xd800 && code < 0xdc00) {
            if (!take('\\') || !take('u') || !unit(low) || low < 0xdc00
                || low > 0xdfff) {
                return false;
            }
            code = 0x10000 + (code - 0xd800) * 0x400 + low - 0xdc00;
        }

        auto put = [&](unsigned byte) { out += static_cast<char>(byte); };

        if (code < 0x80) {
            put(code);
        } else if (code < 0x800) {
            put(0xc0 + code / 64);
            put(0x80 + code % 64);
        } else if (code < 0x10000) {
            put(0xe0 + code / 4096);
            put(0x80 + code / 64 % 64);
            put(0x80 + code % 64);
        } else {
            put(0xf0 + code / 262144);
            put(0x80 + code / 4096 % 64);
            put(0x80 + code / 64 % 64);
            put(0x80 + code % 64);
        }
        return true;
    }

    bool string(std::string &out)
    {
        if (!take('"')) {
            return false;
        }

        while (at_ < text_.size()) {
            char c = text_[at_++];

            if (c == '"') {
                return true;
            }
            if (static_cast<unsigned char>(c) < 0x20
                || (c == '\\' && !escape(out))) {
                return false;
            }
            if (c != '\\') {
                out += c;
            }
        }
        return false;
    }

    std::string_view text_;
    std::size_t at_ = 0;
};


using path = std::vector<std::string>;
using pointers = std::span<const idempotency::json_pointer>;


/* Whether a pointer names this path, or (part) one that goes on from it. */
inline bool
named(pointers list, const path &p, bool part)
{
    return std::any_of(list.begin(), list.end(), [&](const auto &pointer) {
        auto s = pointer.segments;

        if (part ? s.size() <= p.size() : s.size() != p.size()) {
            return false;
        }
        for (std::size_t i = 0; i < p.size(); i++) {
            if (s[i] != "*" && s[i] != p[i]) {
                return false;
            }
        }
        return true;
    });
}


inline std::string
string_form(const std::string &text)
{
    std::string size(1, static_cast<char>(0x80 | text.size()));

    if (text.size() >= 128) {
        size = "s";
        for (std::size_t n = text.size(), i = 0; i < 4; i++, n /= 256) {
            size += static_cast<char>(n % 256);
        }
    }
    return size + text;
}


/* The form of what counts; nothing: nothing does. */
inline std::optional<std::string>
form_of(const node &n, pointers include, pointers exclude, bool whole, path &p)
{
    std::string form(1, n.type);
    bool counts = whole;
    std::size_t left_out = 0;

    if (named(exclude, p, false)) {
        return std::nullopt;
    }
    whole |= named(include, p, false);
    counts = whole;

    if (!whole && !named(include, p, true)) {
        return std::nullopt;
    }
    if (n.type == '"') {
        form = string_form(n.text);
    } else if (!n.form.empty()) {
        form = n.form;
    }

    for (const auto &[name, child] : n.members) {
        p.push_back(name);
        auto inner = form_of(child, include, exclude, whole, p);
        p.pop_back();

        if (inner) {
            form += string_form(name) + *inner;
            counts = true;
        }
    }
    for (std::size_t i = 0; i < n.elements.size(); i++) {
        p.push_back(std::to_string(i));
        auto inner = form_of(n.elements[i], include, exclude, whole, p);
        p.pop_back();

        if (inner) {
            form += left_out ? "_" + std::to_string(left_out) + ";" : "";
            form += *inner;
            counts = true;
        }
        left_out = inner ? 0 : left_out + 1;
    }

    form += n.type == '{' ? "}" : n.type == '[' ? "]" : "";
    return counts ? std::optional<std::string>(form) : std::nullopt;
}


inline std::string
form_of(const node &n, pointers include, pointers exclude)
{
    path p;

    return form_of(n, include, exclude, include.empty(), p).value_or("?");
}


inline const node *
find(const node &n, std::span<const std::string_view> segments)
{
    if (segments.empty()) {
        return &n;
    }

    auto member = n.members.find(std::string(segments[0]));

    if (member != n.members.end()) {
        return find(member->second, segments.subspan(1));
    }
    for (std::size_t i = 0; i < n.elements.size(); i++) {
        if (std::to_string(i) == segments[0]) {
            return find(n.elements[i], segments.subspan(1));
        }
    }
    return nullptr;
}

}
