#include "contract/key.h"

#include "check.h"

#include <algorithm>
#include <string>
#include <vector>

using namespace idempotency;

namespace {

/*
 * Exact copies on the heap, where AddressSanitizer sees a step beyond their
 * end.
 */
bool
parse(std::string_view value, std::string &key)
{
    std::vector<char> in(value.begin(), value.end());
    std::vector<char> out(value.size());
    auto found = parse_key_field({in.data(), in.size()}, out);

    if (found) {
        key = *found;
    }

    return found.has_value();
}


std::string
as_string(std::string_view key)
{
    std::string value = "\"";

    for (char c : key) {
        if (c == '"' || c == '\\') {
            value += '\\';
        }
        value += c;
    }

    return value + '"';
}


void
check_rules(const std::string &key)
{
    std::vector<char> out(key.size());
    std::string_view checked = key;

    check((check_key(checked, {0, key.size(), false}, out) == key_fault::none)
              != key.empty(),
          "what is parsed is printable");
    check(checked == key, "a key stays as it is");

    if (check_key(checked, {1, 255, true}, out) != key_fault::none) {
        return;
    }

    std::string lower(checked);
    std::vector<char> again(lower.size());

    checked = lower;
    check(lower.size() == 36, "a uuid has its length");
    check(check_key(checked, {36, 36, true}, again) == key_fault::none
              && checked == lower,
          "a lower-cased uuid is one");
}

}


extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    std::string key, again;

    if (!parse(text_of(data, size), key)) {
        return 0;
    }

    check(key.size() <= size, "no key is longer than its value");
    check_rules(key);

    check(parse(as_string(key), again) && again == key,
          "a key as a string spells itself");
    check(parse(" " + as_string(key) + ";p=1 ", again) && again == key,
          "parameters and blanks do not count");

    if (!key.empty() && key.find_first_of(" \",") == key.npos) {
        check(parse(key, again) && again == key,
              "a key that can be bare spells itself");
    }

    return 0;
}
