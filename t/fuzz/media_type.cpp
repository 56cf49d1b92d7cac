#include "contract/media_type.h"

#include "check.h"

#include <string>
#include <vector>

using namespace idempotency;

namespace {

media
parse(std::string_view value, std::string &boundary)
{
    std::vector<char> copy(value.begin(), value.end());
    std::vector<char> out(max_boundary);
    media_type found = parse_media_type({copy.data(), copy.size()}, out);

    boundary = found.boundary;

    return found.kind;
}

}


extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    std::string boundary, again;
    media kind = parse(text_of(data, size), boundary);

    if (kind != media::multipart) {
        check(boundary.empty(), "only multipart has a boundary");
        return 0;
    }

    check(is_boundary(boundary) && boundary.size() <= max_boundary,
          "a boundary is one");
    check(parse("multipart/form-data; boundary=\"" + boundary + "\"", again)
                  == media::multipart
              && again == boundary,
          "a quoted boundary spells itself");

    return 0;
}
