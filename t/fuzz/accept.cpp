#include "contract/accept.h"

#include "check.h"

#include <string>
#include <vector>

using namespace idempotency;

namespace {

constexpr std::string_view types[] = {"application/json", "text/plain",
                                      "text/html"};


unsigned
quality(std::string_view accept, std::string_view type)
{
    std::vector<char> copy(accept.begin(), accept.end());

    return quality_of({copy.data(), copy.size()}, type);
}

}


extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    std::string accept(text_of(data, size));
    std::string upper = accept;

    for (char &c : upper) {
        c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    }

    for (std::string_view type : types) {
        unsigned wanted = quality(accept, type);

        check(wanted <= 1000, "a quality is at most 1");
        check(wanted == quality(upper, type), "case does not count");
    }

    return 0;
}
