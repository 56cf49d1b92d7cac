#include "contract/record.h"

#include "check.h"

#include <algorithm>
#include <cstdlib>
#include <string>
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


/* By other words than the reader's own. */
void
check_sendable(response_reader reader, bool to_head)
{
    const response_head &head = reader.head();
    std::string header;
    field f;

    auto add_line = [&](std::string_view name, std::string_view value) {
        check(!name.empty(), "a header has a name");
        header.append(name).append(": ").append(value).append("\r\n");
        check(name.find_first_of(": \t") == name.npos, "a name is one word");
    };

    if (!head.status_line.empty()) {
        check(std::atoi(std::string(head.status_line.substr(0, 3)).c_str())
                  == head.status,
              "the status line has the status");
    }

    add_line("Status", head.status_line);
    add_line("Content-Type", head.content_type);
    add_line("Charset", head.charset);
    std::ptrdiff_t lines = 3;

    for (; reader.next_header(f); lines++) {
        add_line(f.name, f.value);
    }

    for (; reader.next_trailer(f); lines++) {
        add_line(f.name, f.value);
    }

    check(std::count(header.begin(), header.end(), '\n') == lines
              && std::count(header.begin(), header.end(), '\r') == lines
              && header.find('\0') == header.npos,
          "a header has as many lines as fields");
    check(head.status >= 200 && head.status < 1000, "a status is final");
    check(head.last_modified < 253402300800, "a date has four digits");

    bool bodiless = to_head || head.status == 204 || head.status == 304;

    check(bodiless ? reader.body().empty()
                   : head.content_length == -1
                         || static_cast<std::uint64_t>(head.content_length)
                                == reader.body().size(),
          "the length is that of the body");
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

    if (reader.open({data, size}, response_to::head)) {
        check_sendable(reader, true);
    }

    if (!reader.open({data, size})) {
        field f;

        check(!reader.next_header(f) && !reader.next_trailer(f)
                  && reader.body().empty(),
              "a failed open leaves nothing behind");
        return 0;
    }

    check_sendable(reader, false);

    bytes again = written_again(reader);

    check(std::equal(again.begin(), again.end(), data, data + size),
          "what was read is what was written");
    return 0;
}
