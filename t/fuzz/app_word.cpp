#include "contract/outcome.h"

#include "check.h"

#include <string>
#include <vector>

using namespace idempotency;

namespace {

bool
same(const app_word &a, const app_word &b)
{
    return a.release == b.release && a.discard == b.discard
           && a.has_ttl == b.has_ttl && a.ttl == b.ttl;
}


bool
parse(std::string_view value, app_word &word)
{
    std::vector<char> copy(value.begin(), value.end());

    return parse_app_word({copy.data(), copy.size()}, word);
}


std::string
written(const app_word &word)
{
    std::string out = word.release ? "release" : "";

    if (word.discard) {
        out = "discard";
    }

    if (word.has_ttl) {
        out += (out.empty() ? "ttl=" : ", ttl=")
               + std::to_string(word.ttl / 1000);
    }

    return out;
}

}


extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    std::string_view value = text_of(data, size);
    app_word word, again;

    if (!parse(value, word)) {
        check(same(word, {}), "what is not understood changes nothing");
        return 0;
    }

    check(!word.release || (!word.discard && !word.has_ttl),
          "release stands alone");
    check(word.has_ttl || word.ttl == 0, "there is no time without a ttl");

    if (spoken(word)) {
        check(parse(written(word), again) && same(word, again),
              "what was read can be written");
    }

    /* One list, or the header sent twice. */
    std::size_t comma = value.find(',');
    app_word twice;

    if (comma != value.npos && parse(value.substr(0, comma), twice)
        && parse(value.substr(comma + 1), twice))
    {
        check(same(twice, word), "two headers are one list");
    }

    return 0;
}
