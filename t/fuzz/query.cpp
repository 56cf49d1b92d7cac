#include "contract/query.h"

#include "check.h"

#include <string>
#include <vector>

using namespace idempotency;

namespace {

struct pair {
    std::string name;
    std::string value;

    bool operator==(const pair &) const = default;
};


/* On exact copies, so that AddressSanitizer sees a step beyond their end. */
std::vector<pair>
read(std::string_view text)
{
    std::vector<char> in(text.begin(), text.end());
    std::vector<char> room(text.size());
    std::vector<query_field> fields(count_query_fields(text));
    std::vector<pair> out;

    read_query_fields({in.data(), in.size()}, fields, room);

    for (const query_field &f : fields) {
        out.push_back({std::string(f.name), std::string(f.value)});
    }

    return out;
}


std::string
escaped(std::string_view text)
{
    constexpr char digits[] = "0123456789abcdef";
    std::string out;

    for (char c : text) {
        auto byte = static_cast<unsigned char>(c);

        out += '%';
        out += digits[byte >> 4];
        out += digits[byte & 15];
    }

    return out;
}

}


extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    std::vector<pair> fields = read(text_of(data, size));
    std::string again;
    std::size_t bytes = 0;

    for (const pair &f : fields) {
        again += (again.empty() && bytes == 0 ? "" : "&") + escaped(f.name)
                 + "=" + escaped(f.value);
        bytes += f.name.size() + f.value.size() + 1;
    }

    check(bytes <= size + 1, "decoding does not make a text longer");
    check(read(again) == fields, "what was read can be written and read");

    return 0;
}
