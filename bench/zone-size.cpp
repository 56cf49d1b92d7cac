#include "contract/record.h"
#include "store/zone.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

/*
 * How much a memory store holds: fills zones with responses of some sizes
 * (encoded, with their headers), each with a status and a Location.
 *
 *     g++ -std=c++20 -O2 -I src bench/zone-size.cpp src/store/zone*.cpp \
 *         src/contract/{record,summary}.cpp -o zone-size && ./zone-size
 */

using namespace idempotency;

namespace {

constexpr std::size_t mebibyte = 1024 * 1024;
constexpr std::uint64_t day = 24 * 60 * 60 * 1000;


struct held {
    std::size_t with_response; /* until the first was dropped */
    std::size_t in_all;        /* until the first claim was refused */
};


std::vector<std::uint8_t>
summary_of(const char *target)
{
    response_head head;
    field location{"Location", target};

    head.status = 201;

    std::vector<std::uint8_t> all(encoded_size(head) + encoded_size(location));

    encode(encode(all.data(), head, 1), location);

    return all;
}


held
fill(std::size_t size, std::size_t response_size)
{
    void *region = std::aligned_alloc(4096, size);
    zone *z = zone::format(region, size, 1);
    std::vector<std::uint8_t> response(response_size, 'x');
    auto summary = summary_of("/orders/8e03978e-40d5-43dd-bc93-6894a57f9324");
    std::array<std::span<const std::uint8_t>, 1> body{response},
        brief{summary};
    completion how{record_state::completed, day, body, brief, day};
    held h{};
    claim c{};

    c.lease = 30000;
    c.keep = day;

    for (std::uint64_t i = 0;; ++i) {
        std::uint64_t mixed = (i + 1) * 0x9e3779b97f4a7c15;

        std::memcpy(c.name.data(), &mixed, sizeof(mixed));

        if (z->claim(c, 1, {}).result != claim_result::claimed) {
            break;
        }

        z->complete({c.name, c.owner}, how, 1);
        ++h.in_all;
        h.with_response = z->stats().dropped == 0 ? h.in_all : h.with_response;
    }

    std::free(region);

    return h;
}

}


int
main()
{
    std::printf("| size | response | records with response | records in all | "
                "per second at 24h |\n|---|---|---|---|---|\n");

    for (std::size_t size : {64, 256, 1024}) {

        for (std::size_t response : {300, 600, 2000, 10000}) {
            held h = fill(size * mebibyte, response);

            std::printf("| `%zum` | %zu bytes | %zu | %zu | %.1f / %.1f |\n",
                        size, response, h.with_response, h.in_all,
                        static_cast<double>(h.with_response) / 86400,
                        static_cast<double>(h.in_all) / 86400);
        }
    }
}
