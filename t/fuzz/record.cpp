#include "contract/record.h"

#include "check.h"

#include <algorithm>
#include <vector>

using namespace idempotency;

namespace {

using bytes = std::vector<std::uint8_t>;


void
add(bytes &out, const field &f)
{
    std::size_t at = out.size();

    check(encodable(f), "what was read can be written");
    out.resize(at + encoded_size(f));
    check(encode(out.data() + at, f) == out.data() + out.size(),
          "a field has its size");
}


bytes
written_again(response_reader &reader)
{
    const response_head &head = reader.head();
    bytes out(encoded_size(head));
    bytes fields;
    std::size_t headers = 0, trailers = 0;
    field f;

    for (; reader.next_header(f); headers++) {
        add(fields, f);
    }

    check(encodable(head), "what was read can be written");
    check(encode(out.data(), head, headers) == out.data() + out.size(),
          "a head has its size");

    auto body = reader.body();

    out.insert(out.end(), fields.begin(), fields.end());
    out.insert(out.end(), body.begin(), body.end());

    for (; reader.next_trailer(f); trailers++) {
        add(out, f);
    }

    set_body(out.data(), body.size(), trailers);
    return out;
}

}


extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    response_reader reader;

    if (!reader.open({data, size})) {
        field f;

        check(!reader.next_header(f) && !reader.next_trailer(f)
                  && reader.body().empty(),
              "a failed open leaves nothing behind");
        return 0;
    }

    bytes again = written_again(reader);

    check(std::equal(again.begin(), again.end(), data, data + size),
          "what was read is what was written");
    return 0;
}
