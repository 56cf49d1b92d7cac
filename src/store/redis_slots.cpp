#include "store/redis_slots.h"

#include "contract/ascii.h"

#include <algorithm>
#include <charconv>

namespace idempotency {

namespace {

/* CRC-16/XMODEM. */
constexpr auto table = [] {
    std::array<std::uint16_t, 256> out = {};

    for (unsigned byte = 0; byte < out.size(); byte++) {
        unsigned crc = byte << 8;

        for (int bit = 0; bit < 8; bit++) {
            crc = crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1;
        }

        out[byte] = static_cast<std::uint16_t>(crc);
    }

    return out;
}();


bool
read_number(std::string_view text, std::uint64_t &out)
{
    auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(),
                                        out);

    return wrong == std::errc() && end == text.data() + text.size();
}


/* It gets into the log, where another text could look like a line. */
bool
is_host(std::string_view text)
{
    return std::all_of(text.begin(), text.end(), [](char c) {
        return is_alphanumeric(c) || is_one_of(c, ".-_:%");
    });
}


bool
is_range(const redisReply &range)
{
    return range.type == REDIS_REPLY_ARRAY && range.elements >= 3
           && range.element[0]->type == REDIS_REPLY_INTEGER
           && range.element[1]->type == REDIS_REPLY_INTEGER
           && range.element[0]->integer >= 0
           && range.element[1]->integer >= range.element[0]->integer
           && range.element[1]->integer < static_cast<long long>(slot_count);
}

}


std::uint16_t
crc16(std::string_view text, std::uint16_t from)
{
    unsigned crc = from;

    for (char c : text) {
        crc = (crc << 8 & 0xffff)
              ^ table[(crc >> 8 ^ static_cast<unsigned char>(c)) & 0xff];
    }

    return static_cast<std::uint16_t>(crc);
}


bool
server_address::set(std::string_view name, std::uint64_t number)
{
    *this = {};

    if (name.size() >= host.size() || !is_host(name) || number == 0
        || number > 65535)
    {
        return false;
    }

    name.copy(host.data(), name.size());
    port = static_cast<std::uint16_t>(number);

    return true;
}


bool
read_redirection(std::string_view error, redirection &out)
{
    constexpr std::string_view moved = "MOVED ";
    constexpr std::string_view ask = "ASK ";

    out.ask = error.starts_with(ask);

    if (!out.ask && !error.starts_with(moved)) {
        return false;
    }

    error.remove_prefix(out.ask ? ask.size() : moved.size());

    std::size_t space = error.find(' ');
    std::size_t colon = error.rfind(':');
    std::uint64_t slot = 0;
    std::uint64_t port = 0;

    if (space == error.npos || colon == error.npos || colon < space
        || !read_number(error.substr(0, space), slot) || slot >= slot_count
        || !read_number(error.substr(colon + 1), port))
    {
        return false;
    }

    out.slot = static_cast<std::uint16_t>(slot);

    return out.where.set(error.substr(space + 1, colon - space - 1), port);
}


bool
read_slot_range(const redisReply &reply, std::string_view asked,
                slot_range &out)
{
    if (!is_range(reply)) {
        return false;
    }

    const redisReply &node = *reply.element[2];

    if (node.type != REDIS_REPLY_ARRAY || node.elements < 2
        || node.element[1]->type != REDIS_REPLY_INTEGER
        || node.element[1]->integer < 0)
    {
        return false;
    }

    const redisReply &host = *node.element[0];
    auto port = static_cast<std::uint64_t>(node.element[1]->integer);
    std::string_view name = host.type == REDIS_REPLY_STRING ? text_of(host)
                                                            : "";

    out.first = static_cast<std::uint16_t>(reply.element[0]->integer);
    out.last = static_cast<std::uint16_t>(reply.element[1]->integer);

    return name != "?" && out.master.set(name.empty() ? asked : name, port);
}


bool
read_master(const redisReply &reply, server_address &out)
{
    if (reply.type != REDIS_REPLY_ARRAY || reply.elements != 2
        || reply.element[0]->type != REDIS_REPLY_STRING
        || reply.element[1]->type != REDIS_REPLY_STRING)
    {
        return false;
    }

    std::string_view host = text_of(*reply.element[0]);
    std::uint64_t port = 0;

    return !host.empty() && read_number(text_of(*reply.element[1]), port)
           && out.set(host, port);
}

}
