#pragma once

#include <string_view>

namespace idempotency {

#define OTHER_TOKEN "old:sub(7, 22) ~= token"

/*
 * Each script is atomic and touches one key.  The offsets are those of
 * redis_record.h, counted from 1: 1 version, 2 state, 3-6 attempt, 7-22 token,
 * 23-54 fingerprint, 55-62 expiry, 63-70 mark.
 */

/*
 * Arguments: record, its expiry, whether an unknown outcome may be taken over.
 * Returns the number of the attempt that was claimed, or the existing record
 * and its remaining TTL.  A pending record that was not renewed within its
 * lease counts as unknown, by Redis' clock alone.
 */
inline constexpr std::string_view claim_script = R"(
local key, record, expiry, take_over = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local old = redis.call('GET', key)
if not old then
  redis.call('SET', key, record, 'PX', expiry)
  return 1
end
local left = redis.call('PTTL', key)
if #old < 70 or old:byte(1) ~= 1 then
  return {old, left}
end
local given, lease = struct.unpack('<I8I8', old, 55)
local unknown = old:byte(2) == 4
  or old:byte(2) == 1 and given - left >= lease
if not unknown or take_over ~= '1'
  or old:sub(23, 54) ~= record:sub(23, 54)
then
  return {old, left}
end
local attempt = struct.unpack('<I4', old, 3) + 1
redis.call('SET', key,
  record:sub(1, 2) .. struct.pack('<I4', attempt) .. record:sub(7),
  'PX', expiry)
return attempt
)";


/*
 * Arguments: token, state, expiry, room for a head and the response.  If the
 * same token has stored an outcome before, its reply was lost: nothing to do.
 */
inline constexpr std::string_view complete_script = R"(
local key, token, state, expiry = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local old = redis.call('GETRANGE', key, 0, 69)
if #old < 70 or old:byte(1) ~= 1 or )" OTHER_TOKEN R"( then
  return 0
end
if old:byte(2) == 2 or old:byte(2) == 3 then
  return 1
end
local time = redis.call('TIME')
redis.call('SET', key, ARGV[4], 'PX', expiry)
redis.call('SETRANGE', key, 0,
  string.char(1, state) .. old:sub(3, 54) .. struct.pack('<I8I8', expiry,
    time[1] * 1000 + math.floor(time[2] / 1000)))
return 1
)";


/* Arguments: token, expiry. */
inline constexpr std::string_view mark_unknown_script = R"(
local key, token, expiry = KEYS[1], ARGV[1], ARGV[2]
local old = redis.call('GETRANGE', key, 0, 69)
if #old < 70 or old:byte(1) ~= 1 or )" OTHER_TOKEN R"( then
  return 0
end
if old:byte(2) ~= 1 then
  return 1
end
local time = redis.call('TIME')
redis.call('SET', key,
  string.char(1, 4) .. old:sub(3, 54) .. struct.pack('<I8I8', expiry,
    time[1] * 1000 + math.floor(time[2] / 1000)),
  'PX', expiry)
return 1
)";


/*
 * Arguments: token, whether the claim is undone because nobody has run it.
 * Then a record that was taken over becomes unknown again, as it was before.
 */
inline constexpr std::string_view release_script = R"(
local key, token, give_back = KEYS[1], ARGV[1], ARGV[2]
local old = redis.call('GETRANGE', key, 0, 69)
if #old < 70 or old:byte(1) ~= 1 or old:byte(2) ~= 1
  or )" OTHER_TOKEN R"(
then
  return 0
end
local attempt = struct.unpack('<I4', old, 3)
if give_back ~= '1' or attempt == 1 then
  return redis.call('DEL', key)
end
local time = redis.call('TIME')
local expiry = struct.unpack('<I8', old, 55)
redis.call('SET', key,
  string.char(1, 4) .. struct.pack('<I4', attempt - 1) .. old:sub(7, 62)
    .. struct.pack('<I8', time[1] * 1000 + math.floor(time[2] / 1000)),
  'PX', string.format('%.0f', expiry))
return 1
)";


/* Argument: token. */
inline constexpr std::string_view renew_script = R"(
local key, token = KEYS[1], ARGV[1]
local old = redis.call('GETRANGE', key, 0, 69)
if #old < 70 or old:byte(1) ~= 1 or old:byte(2) ~= 1
  or )" OTHER_TOKEN R"(
then
  return 0
end
return redis.call('PEXPIRE', key, string.format('%.0f',
  (struct.unpack('<I8', old, 55))))
)";

}
