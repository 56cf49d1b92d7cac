#include "store/redis_record.h"

#include "check.h"

#include <algorithm>

using namespace idempotency;


extern "C" int
LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size)
{
    auto record = decode_redis_record({data, size});

    if (!record) {
        return 0;
    }

    auto head = encode_redis_head(*record);

    check(std::equal(head.begin(), head.end(), data),
          "what was read is written the same");
    check(record->response.data() == data + head.size()
              && head.size() + record->response.size() == size,
          "the response is all that follows the head");

    return 0;
}
