#pragma once

#include <string_view>

namespace idempotency {

/*
 * For administrators; see redis_scripts.h for the rest.  A script that fails
 * is not undone, so each writes by one command, its last.  They use no command
 * that try_out_script does not try, but for SCAN: the greeting tries that.
 */

/* Whether a record is unknown: see the claim's script. */
#define UNKNOWN_RECORD                                                        \
    "(head:byte(2) == 4 or head:byte(2) == 1 and given - left >= lease)"

inline constexpr std::string_view look_up_script = R"(
local record = redis.call('GET', KEYS[1])
if not record then
  return 0
end
return {KEYS[1], record:sub(1, 74), redis.call('PTTL', KEYS[1]), #record}
)";


/*
 * Arguments: where to begin, pattern, how many keys to look at.  A record that
 * is unknown has no response, so its head is all of it.
 */
inline constexpr std::string_view list_script = R"(
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local out = {}
for _, key in ipairs(found[2]) do
  local head = redis.pcall('GETRANGE', key, 0, 73)
  if type(head) == 'string' and #head >= 70 and head:byte(1) == 1 then
    local left = redis.call('PTTL', key)
    local given, lease = struct.unpack('<I8I8', head, 55)
    if )" UNKNOWN_RECORD R"( then
      out[#out + 1] = {key, head, left, #head}
    end
  end
end
return {found[1], out}
)";


/*
 * Arguments: act, token, expiry, expiry and mark as they stand in a record,
 * response.  Returns an admin_result.
 */
inline constexpr std::string_view settle_script = R"(
local key, act, token, expiry, times, response =
  KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
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
redis.call('SET', key,
  string.char(1, 2) .. head:sub(3, 6) .. token .. head:sub(23, 54) .. times
    .. response,
  'PX', expiry)
return 0
)";

#undef UNKNOWN_RECORD

}
