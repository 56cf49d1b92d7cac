#include "contract/place.h"

#include "check.h"

#include <string>
#include <vector>

using namespace idempotency;


extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    std::vector<char> copy(data, data + size);
    std::string_view place(copy.data(), copy.size());
    auto to = read_place(place);

    if (!to) {
        return 0;
    }

    check(!to->location.empty(), "a place has a location");
    check(place.ends_with(std::string(to->uri) + '\0'
                          + std::string(to->arguments)),
          "URI and arguments are the end of it");

    if (place[0] == '@') {
        check(to->uri.empty() && to->arguments.empty(),
              "a named location has no URI");
        return 0;
    }

    std::string uri = std::string(to->uri) + "/";

    check(uri[0] == '/' && uri.find("/../") == uri.npos,
          "a URI does not lead out of a root");
    check((uri + std::string(to->arguments)).find('\0') == std::string::npos,
          "no part has a separator");

    return 0;
}
