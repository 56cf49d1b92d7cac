#include "store/redis_slots.h"

#include "check.h"

#include <string>
#include <vector>

using namespace idempotency;


extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    std::vector<char> copy(data, data + size);
    redirection to, again;

    if (!read_redirection({copy.data(), copy.size()}, to)) {
        return 0;
    }

    std::string host = to.where.host.data();

    check(to.slot < slot_count && to.where.port != 0,
          "there is such a slot and such a port");
    check(host.find_first_of(" \r\n\"\\") == host.npos,
          "a host can stand in the log");

    std::string text = (to.ask ? "ASK " : "MOVED ") + std::to_string(to.slot)
                       + " " + host + ":" + std::to_string(to.where.port);

    check(read_redirection(text, again) && again.ask == to.ask
              && again.slot == to.slot && again.where == to.where,
          "what was read can be written");

    return 0;
}
