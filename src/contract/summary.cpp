#include "contract/summary.h"

#include "contract/little_endian.h"
#include "contract/record.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace idempotency {

namespace {

constexpr std::size_t at_form = 0;
constexpr std::size_t at_status = 1;
constexpr std::size_t at_location = 3;

/* By form; an application's spelling is kept. */
constexpr std::array<std::string_view, 4> names{"", "", "Location",
                                                "location"};
constexpr std::uint8_t without_location = 1;

/* What is shortened must come back byte by byte. */
constexpr std::size_t longest = 512;


struct parts {
    response_head head;
    field location;
    bool has_location;
};


std::uint8_t form_of(response_reader &summary, field &location);
bool take_apart(std::span<const std::uint8_t> brief, parts &p);

}


std::size_t
shorten_summary(std::span<const std::uint8_t> summary,
                std::span<std::uint8_t> out)
{
    response_reader reader;
    field location = {};

    if (summary.size() > longest || !reader.open(summary)) {
        return 0;
    }

    std::uint8_t form = form_of(reader, location);
    std::size_t size = at_location + location.value.size();

    if (form == 0 || size > out.size()) {
        return 0;
    }

    out[at_form] = form;
    put_little_endian(out.data() + at_status, reader.head().status);
    std::copy(location.value.begin(), location.value.end(),
              out.begin() + at_location);

    std::array<std::uint8_t, longest> again;
    auto brief = out.first(size);

    if (summary_size(brief) != summary.size()) {
        return 0;
    }

    restore_summary(brief, again.data());

    return std::equal(summary.begin(), summary.end(), again.begin()) ? size
                                                                     : 0;
}


std::size_t
summary_size(std::span<const std::uint8_t> brief)
{
    parts p;

    if (!take_apart(brief, p)) {
        return 0;
    }

    return encoded_size(p.head)
           + (p.has_location ? encoded_size(p.location) : 0);
}


void
restore_summary(std::span<const std::uint8_t> brief, std::uint8_t *out)
{
    parts p;

    if (!take_apart(brief, p)) {
        return;
    }

    out = encode(out, p.head, p.has_location);

    if (p.has_location) {
        encode(out, p.location);
    }
}


namespace {

/* 0: there is more in it than a short form can tell. */
std::uint8_t
form_of(response_reader &summary, field &location)
{
    if (!summary.next_header(location)) {
        return without_location;
    }

    auto known = std::find(names.begin() + without_location + 1, names.end(),
                           location.name);

    return known == names.end()
               ? 0
               : static_cast<std::uint8_t>(known - names.begin());
}


bool
take_apart(std::span<const std::uint8_t> brief, parts &p)
{
    if (brief.size() < at_location || brief[at_form] < without_location
        || brief[at_form] >= names.size())
    {
        return false;
    }

    auto rest = brief.subspan(at_location);

    p.head = response_head();
    p.head.status = get_little_endian<std::uint16_t>(brief.data() + at_status);
    p.has_location = brief[at_form] != without_location;
    p.location = {names[brief[at_form]],
                  {reinterpret_cast<const char *>(rest.data()), rest.size()}};

    return true;
}

}

}
