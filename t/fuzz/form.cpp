#include "contract/form.h"

#include "check.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace idempotency;

namespace {

using pairs = std::vector<std::pair<std::string, std::string>>;
using result = std::optional<digest>;


result
digest_of(std::string_view body)
{
    std::vector<char> in(body.begin(), body.end());
    hasher hash;
    digest d;

    hash.start("form");

    form_result r = canonical_form({in.data(), in.size()}, hash);
    check(r != form_result::no_memory, "there is memory");

    if (r != form_result::ok) {
        hasher untouched;
        digest none;

        untouched.start("form");
        check(hash.finish(d) && untouched.finish(none) && d == none,
              "nothing is added for what is no form");
        return std::nullopt;
    }

    check(hash.finish(d), "there is a digest");
    return d;
}


bool
unescape(std::string_view text, std::string &out)
{
    for (std::size_t i = 0; i < text.size(); i++) {
        if (text[i] != '%') {
            out += text[i] == '+' ? ' ' : text[i];
            continue;
        }

        std::string hex(text.substr(i + 1, 2));

        if (hex.size() < 2 || !std::isxdigit(hex[0] & 0xff)
            || !std::isxdigit(hex[1] & 0xff))
        {
            return false;
        }

        out += static_cast<char>(std::strtol(hex.c_str(), nullptr, 16));
        i += 2;
    }

    return text.find(';') == text.npos;
}


std::string
root_of(std::string name)
{
    std::string root = name.substr(0, name.find('['));

    for (char &c : root) {
        c = c == '.' || c == ' '   ? '_'
            : c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20)
                                   : c;
    }

    return root;
}


/* The same once more, as simple as can be. */
std::optional<pairs>
parse(std::string_view body)
{
    pairs found;

    while (!body.empty()) {
        std::string_view piece = body.substr(0, body.find('&'));

        body.remove_prefix(std::min(piece.size() + 1, body.size()));

        if (piece.empty()) {
            continue;
        }

        std::size_t equals = piece.find('=');
        std::string name, value;

        if (!unescape(piece.substr(0, equals), name)
            || (equals != piece.npos
                && !unescape(piece.substr(equals + 1), value)))
        {
            return std::nullopt;
        }

        found.emplace_back(name, value);
    }

    std::stable_sort(found.begin(), found.end(),
                     [](const auto &a, const auto &b) {
                         return root_of(a.first) < root_of(b.first);
                     });
    return found;
}


/* The bytes that are hashed. */
digest
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

    check(hash.finish(d), "there is a digest");
    return d;
}


std::string
escaped(std::string_view text)
{
    std::string out;
    char hex[4];

    for (char c : text) {
        std::snprintf(hex, sizeof(hex), "%%%02x", c & 0xff);
        out += hex;
    }

    return out;
}


/* Those of one root in their order, the roots from the last to the first. */
std::string
serialized_backwards(const pairs &form)
{
    std::string body;

    for (auto end = form.end(); end != form.begin();) {
        auto begin = std::find_if(form.begin(), end, [&](const auto &p) {
            return root_of(p.first) == root_of((end - 1)->first);
        });

        for (auto p = begin; p != end; p++) {
            body += escaped(p->first) + "=" + escaped(p->second) + "&";
        }

        end = begin;
    }

    return body;
}

}


extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    std::string body(text_of(data, size));
    result found = digest_of(body);
    auto expected = parse(body);

    check(found.has_value() == expected.has_value(), "what is a form");

    if (!found) {
        return 0;
    }

    check(digest_of(*expected) == found, "what it means");
    check(digest_of(body + "&") == found, "an empty piece is none");
    check(digest_of("&&" + body) == found, "an empty piece is none");
    check(digest_of(serialized_backwards(*expected)) == found,
          "the order of names and the spelling do not count");
    check(digest_of(body + "&=") != found, "a pair more counts");

    if (!expected->empty()) {
        pairs changed = *expected;

        changed.back().second += 'x';
        check(digest_of(serialized_backwards(changed)) != found,
              "a value counts");
    }

    return 0;
}
