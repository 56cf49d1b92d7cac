#include "contract/record.h"
#include "contract/summary.h"

#include <catch2/catch.hpp>

#include <string>
#include <vector>

using namespace idempotency;

namespace {

using bytes = std::vector<std::uint8_t>;


bytes
summary_of(std::uint16_t status, std::vector<field> fields,
           response_head head = {})
{
    head.status = status;

    std::size_t size = encoded_size(head);

    for (const field &f : fields) {
        size += encoded_size(f);
    }

    bytes all(size);
    std::uint8_t *p = encode(all.data(), head, fields.size());

    for (const field &f : fields) {
        p = encode(p, f);
    }

    return all;
}


/* What a summary becomes in this much room, and back; empty: nothing. */
bytes
there_and_back(const bytes &summary, std::size_t room, std::size_t &size)
{
    bytes brief(room);

    size = shorten_summary(summary, brief);
    brief.resize(size);

    bytes again(summary_size(brief));

    if (size != 0) {
        restore_summary(brief, again.data());
    }

    return again;
}

}


TEST_CASE("summary: the short form is short, and comes back whole")
{
    std::size_t size;
    bytes plain = summary_of(204, {});
    bytes capital = summary_of(201, {{"Location", "/orders/17"}});
    bytes lower = summary_of(303, {{"location", ""}});

    CHECK(there_and_back(plain, 72, size) == plain);
    CHECK(size == 3);
    CHECK(there_and_back(capital, 72, size) == capital);
    CHECK(size == 13);
    CHECK(there_and_back(capital, 13, size) == capital);
    CHECK(there_and_back(lower, 72, size) == lower);
    CHECK(size == 3);
}


TEST_CASE("summary: what has no short form is left alone")
{
    std::size_t size;
    std::string location(500, 'x');
    response_head worded;
    worded.status_line = "201 Made";

    CHECK(there_and_back(summary_of(201, {{"Location", "/17"}}), 5, size)
          == bytes());
    CHECK(there_and_back(summary_of(201, {{"LOCATION", "/17"}}), 72, size)
          == bytes());
    CHECK(there_and_back(
              summary_of(201, {{"Location", "/1"}, {"Location", "/2"}}), 72,
              size)
          == bytes());
    CHECK(there_and_back(summary_of(201, {}, worded), 72, size) == bytes());
    CHECK(there_and_back(summary_of(201, {{"Location", location}}), 999, size)
          == bytes());
    CHECK(there_and_back(bytes{1, 2, 3}, 72, size) == bytes());
    CHECK(there_and_back(bytes(), 72, size) == bytes());
}


TEST_CASE("summary: a damaged short form is none")
{
    CHECK(summary_size(bytes{}) == 0);
    CHECK(summary_size(bytes{2, 201}) == 0);
    CHECK(summary_size(bytes{0, 201, 0, 'x'}) == 0);
    CHECK(summary_size(bytes{4, 201, 0, 'x'}) == 0);
}
