#include "contract/form.h"

#include "contract/ascii.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>

namespace idempotency {

namespace {

struct free_memory {
    void operator()(void *memory) const { std::free(memory); }
};


/*
 * Name and value lie one after the other in the decoded bytes, from where
 * their piece began in the body.  So no two have the same place, and order by
 * place is the order in which they came.
 */
struct pair {
    std::uint32_t at = 0;
    std::uint32_t name = 0;
    std::uint32_t value = 0;
};


std::size_t count_pieces(std::string_view body);
bool decode_body(std::string_view body, char *out, std::span<pair> pairs);
bool decode_pair(std::string_view piece, char *out, pair &decoded);
char *decode(std::string_view text, char *out);
int compare_roots(std::string_view a, std::string_view b);
int root_char(std::string_view name, std::size_t i);
void add_sorted(std::span<pair> pairs, const char *text, hasher &hash);

}


form_result
canonical_form(std::string_view body, hasher &hash)
{
    /* Larger ones do not fit the index, nor would anyone want to sort them. */
    if (body.size() > UINT32_MAX) {
        return form_result::not_form;
    }

    std::size_t count = count_pieces(body);

    if (count > max_form_pairs) {
        return form_result::not_form;
    }

    std::size_t index_size = count * sizeof(pair);
    std::unique_ptr<void, free_memory> memory(
        std::malloc(index_size + body.size() + 1));

    if (memory == nullptr) {
        return form_result::no_memory;
    }

    auto *index = static_cast<pair *>(memory.get());
    char *text = static_cast<char *>(memory.get()) + index_size;
    std::span<pair> pairs(index, count);

    std::uninitialized_default_construct(pairs.begin(), pairs.end());

    if (!decode_body(body, text, pairs)) {
        return form_result::not_form;
    }

    add_sorted(pairs, text, hash);
    return form_result::ok;
}


namespace {

std::size_t
count_pieces(std::string_view body)
{
    std::size_t count = 0;
    char before = '&';

    for (char c : body) {
        count += before == '&' && c != '&';
        before = c;
    }

    return count;
}


bool
decode_body(std::string_view body, char *out, std::span<pair> pairs)
{
    std::size_t count = 0;
    std::size_t at = 0;

    while (at < body.size()) {
        std::size_t end = std::min(body.find('&', at), body.size());

        if (end > at) {
            pair &next = pairs[count++];

            next.at = static_cast<std::uint32_t>(at);

            if (!decode_pair(body.substr(at, end - at), out + at, next)) {
                return false;
            }
        }

        at = end + 1;
    }

    return true;
}


bool
decode_pair(std::string_view piece, char *out, pair &decoded)
{
    std::size_t equals = std::min(piece.find('='), piece.size());
    char *name_end = decode(piece.substr(0, equals), out);

    if (name_end == nullptr) {
        return false;
    }

    piece.remove_prefix(std::min(equals + 1, piece.size()));

    char *value_end = decode(piece, name_end);

    if (value_end == nullptr) {
        return false;
    }

    decoded.name = static_cast<std::uint32_t>(name_end - out);
    decoded.value = static_cast<std::uint32_t>(value_end - name_end);
    return true;
}


/* Writes no more than it reads.  Null: not a form. */
char *
decode(std::string_view text, char *out)
{
    for (std::size_t i = 0; i < text.size(); i++) {
        char c = text[i];

        if (c == ';') {
            return nullptr;
        }

        if (c == '%') {
            int high = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
            int low = high >= 0 ? hex_value(text[i + 2]) : -1;

            if (low < 0) {
                return nullptr;
            }

            c = static_cast<char>(high << 4 | low);
            i += 2;

        } else if (c == '+') {
            c = ' ';
        }

        *out++ = c;
    }

    return out;
}


/* Negative, zero or positive: a's root is before, the same as or behind b's.
 */
int
compare_roots(std::string_view a, std::string_view b)
{
    for (std::size_t i = 0; /* void */; i++) {
        int of_a = root_char(a, i);
        int of_b = root_char(b, i);

        if (of_a != of_b || of_a < 0) {
            return of_a - of_b;
        }
    }
}


/* A byte of the root of a name; negative: the root has ended before. */
int
root_char(std::string_view name, std::size_t i)
{
    if (i == name.size() || name[i] == '[') {
        return -1;
    }

    char c = name[i] == '.' || name[i] == ' ' ? '_' : to_lower(name[i]);

    return static_cast<unsigned char>(c);
}


void
add_sorted(std::span<pair> pairs, const char *text, hasher &hash)
{
    auto name = [text](const pair &p) {
        return std::string_view(text + p.at, p.name);
    };

    /* Std::stable_sort() would allocate once more. */
    std::sort(pairs.begin(), pairs.end(), [&](const pair &a, const pair &b) {
        int order = compare_roots(name(a), name(b));

        return order != 0 ? order < 0 : a.at < b.at;
    });

    hash.number(pairs.size());

    for (const pair &p : pairs) {
        hash.field(name(p));
        hash.field({text + p.at + p.name, p.value});
    }
}

}

}
