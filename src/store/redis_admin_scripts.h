#pragma once

#include <string_view>

namespace idempotency {

/* For administrators; see redis_scripts.h for the rest. */

/* Whether a record is unknown: see the claim's script. */
#define UNKNOWN_RECORD                                                        \
    "(head:byte(2) == 4 or head:byte(2) == 1 and given - left >= lease)"

inline constexpr std::string_view look_up_script = R"(
local head = redis.call('GETRANGE', KEYS[1], 0, 73)
if #head == 0 then
  return 0
end
return {KEYS[1], head, redis.call('PTTL', KEYS[1]),
  redis.call('STRLEN', KEYS[1]), tonumber(redis.call('TIME')[1])}
)";


/* Arguments: where to begin, pattern, how many keys to look at. */
inline constexpr std::string_view list_script = R"(
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local time = tonumber(redis.call('TIME')[1])
local out = {}
for _, key in ipairs(found[2]) do
  local head = redis.pcall('GETRANGE', key, 0, 73)
  if type(head) == 'string' and #head >= 70 and head:byte(1) == 1 then
    local left = redis.call('PTTL', key)
    local given, lease = struct.unpack('<I8I8', head, 55)
    if )" UNKNOWN_RECORD R"( then
      out[#out + 1] = {key, head, left, redis.call('STRLEN', key), time}
    end
  end
end
return {found[1], out}
)";


/*
 * Arguments: act, token, expiry, room for a head and the response.  Returns an
 * admin_result.
 */
inline constexpr std::string_view settle_script = R"(
local key, act, token, expiry = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local head = redis.call('GETRANGE', key, 0, 69)
if #head == 0 then
  return 1
end
local unknown = false
if #head == 70 and head:byte(1) == 1 then
  local left = redis.call('PTTL', key)
  local given, lease = struct.unpack('<I8I8', head, 55)
  unknown = )" UNKNOWN_RECORD R"(
  if head:byte(2) == 1 and not unknown then
    return 2
  end
end
if act ~= 'delete' and not unknown then
  return 3
end
if act ~= 'complete' then
  redis.call('DEL', key)
  return 0
end
local time = redis.call('TIME')
redis.call('SET', key, ARGV[4], 'PX', expiry)
redis.call('SETRANGE', key, 0,
  string.char(1, 2) .. head:sub(3, 6) .. token .. head:sub(23, 54)
    .. struct.pack('<I8I8', expiry,
      time[1] * 1000 + math.floor(time[2] / 1000)))
return 0
)";

#undef UNKNOWN_RECORD

}
