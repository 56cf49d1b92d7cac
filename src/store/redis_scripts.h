#pragma once

#include <string_view>

namespace idempotency {

#define OTHER_TOKEN "old:sub(7, 22) ~= token"

/* An empty string is a value too, which is not to be replaced. */
#define IS_GONE "#old == 0 and redis.call('PTTL', key) == -2"

/*
 * Each script is atomic and touches one key.  The offsets are those of
 * redis_record.h, counted from 1: 1 version, 2 state, 3-6 attempt, 7-22 token,
 * 23-54 fingerprint, 55-62 expiry, 63-70 mark.
 *
 * A server that has lost its memory does not have the record of a running
 * request.  Its owner puts the record back, so the heads of records come from
 * nginx in full.  All scripts after the claim return 0 if the record belongs
 * to another token, 1 if they did what was asked, 2 if they put it back, 3 if
 * they put it back in the place of another's record, 4 if it was so already.
 */

#define ATTEMPT "struct.unpack('<I4', record, 3)"
#define OTHER_ATTEMPT "struct.unpack('<I4', old, 3)"

/*
 * A record of another that may give way to one which is put back: a claim that
 * was gone from the memory that was lost, or whatever an earlier attempt has
 * left.  One that has taken over from us may not, nor an outcome of the same
 * attempt.
 */
#define MAY_GIVE_WAY_AFTER_LOSS                                               \
    "replace == '1' and " OTHER_ATTEMPT                                       \
    " + (old:byte(2) == 1 and 0 or 1) <= " ATTEMPT

/*
 * A server that was emptied but not restarted (FLUSHALL) is the same one for
 * everybody, and nobody is told to replace anything.  So the owner of an
 * earlier attempt, from whom we have taken over, finds no record and puts its
 * own there.  It must not stay, or a third attempt takes over from it and runs
 * beside us.  But a claim that came meanwhile runs as well, and mostly ends
 * later than we do: it has to stay for the same reason.
 *
 * They differ in their lease.  Who had lost its lease puts back a record whose
 * lease has expired, until it renews it a third of the lease later.  By then
 * we have renewed ours.  This is right without a loss, too: nobody owns such a
 * record.
 */
#define MAY_GIVE_WAY_TO_LATER                                                 \
    "old:sub(23, 54) == record:sub(23, 54) "                                  \
    "and (old:byte(2) == 4 or old:byte(2) == 1 "                              \
    "and struct.unpack('<I8', old, 55) - redis.call('PTTL', key) "            \
    ">= struct.unpack('<I8', old, 63)) and " OTHER_ATTEMPT " < " ATTEMPT

/*
 * The answer of a run whose lease has not expired: until then nobody else can
 * own the record by right, so a claim in its place has come after a loss.  It
 * may never run and be withdrawn, or be a renewal of an earlier attempt that
 * was long on its way, and then the answer would be forgotten with it.  If
 * such a claim has run and left an unknown outcome, a retry would run again
 * although there is an answer.
 */
#define MAY_GIVE_WAY_TO_ANSWER                                                \
    "replace == '2' and (old:byte(2) == 1 or old:byte(2) == 4) "              \
    "and " OTHER_ATTEMPT " <= " ATTEMPT

#define MAY_GIVE_WAY                                                          \
    "(" MAY_GIVE_WAY_AFTER_LOSS " or " MAY_GIVE_WAY_TO_LATER                  \
    " or " MAY_GIVE_WAY_TO_ANSWER ")"

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
 * Arguments: token, record, its expiry or 0 for none, whether another's record
 * may be replaced: 0, 1 or 2 as above.  If the same token has stored an
 * outcome before, its reply was lost: nothing to do.
 */
inline constexpr std::string_view complete_script = R"(
local key, token, record, expiry, replace =
  KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local old = redis.call('GETRANGE', key, 0, 69)
local result = 1
if )" IS_GONE R"( then
  result = 2
elseif #old < 70 or old:byte(1) ~= 1 then
  return 0
elseif )" OTHER_TOKEN R"( then
  if not )" MAY_GIVE_WAY R"( then
    return 0
  end
  result = 3
elseif old:byte(2) == 2 or old:byte(2) == 3 then
  return 4
end
if expiry == '0' then
  redis.call('SET', key, record)
else
  redis.call('SET', key, record, 'PX', expiry)
end
return result
)";


/* The same arguments; an outcome that is stored already is better. */
inline constexpr std::string_view mark_unknown_script = R"(
local key, token, record, expiry, replace =
  KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local old = redis.call('GETRANGE', key, 0, 69)
local result = 1
if )" IS_GONE R"( then
  result = 2
elseif #old < 70 or old:byte(1) ~= 1 then
  return 0
elseif )" OTHER_TOKEN R"( then
  if old:byte(2) == 2 or old:byte(2) == 3 or not )" MAY_GIVE_WAY R"( then
    return 0
  end
  result = 3
elseif old:byte(2) ~= 1 then
  return 4
end
if expiry == '0' then
  redis.call('SET', key, record)
else
  redis.call('SET', key, record, 'PX', expiry)
end
return result
)";


/*
 * Arguments: token, whether the claim is undone because nobody has run it, the
 * time as it stands in a record.  Undone, a record that was taken over becomes
 * unknown again, as it was before, and 0 says that there was none.
 */
inline constexpr std::string_view release_script = R"(
local key, token, give_back, time = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local old = redis.call('GETRANGE', key, 0, 69)
if give_back ~= '1' and )" IS_GONE R"( then
  return 4
end
if #old < 70 or old:byte(1) ~= 1 or old:byte(2) ~= 1
  or )" OTHER_TOKEN R"(
then
  return 0
end
local attempt = struct.unpack('<I4', old, 3)
if give_back ~= '1' or attempt == 1 then
  return redis.call('DEL', key)
end
local expiry = struct.unpack('<I8', old, 55)
redis.call('SET', key,
  string.char(1, 4) .. struct.pack('<I4', attempt - 1) .. old:sub(7, 62)
    .. time,
  'PX', string.format('%.0f', expiry))
return 1
)";


/* Arguments: token, record, its expiry, whether to replace as above. */
inline constexpr std::string_view renew_script = R"(
local key, token, record, expiry, replace =
  KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local old = redis.call('GETRANGE', key, 0, 69)
if )" IS_GONE R"( then
  redis.call('SET', key, record, 'PX', expiry)
  return 2
end
if #old >= 70 and old:byte(1) == 1 and )" OTHER_TOKEN R"(
  and )" MAY_GIVE_WAY R"(
then
  redis.call('SET', key, record, 'PX', expiry)
  return 3
end
if #old < 70 or old:byte(1) ~= 1 or old:byte(2) ~= 1
  or )" OTHER_TOKEN R"(
then
  return 0
end
return redis.call('PEXPIRE', key, string.format('%.0f',
  (struct.unpack('<I8', old, 55))))
)";


/*
 * Tries out every command that the other scripts use, on a key of its own.
 * Arguments: a value to leave there, whether to remove the key again.  Returns
 * the value that was there before.
 */
inline constexpr std::string_view try_out_script = R"(
local key, value, remove = KEYS[1], ARGV[1], ARGV[2]
local before = redis.call('GET', key)
redis.call('SET', key, value, 'PX', 10000)
redis.call('GETRANGE', key, 0, 69)
redis.call('PTTL', key)
redis.call('PEXPIRE', key, 10000)
if remove == '1' then
  redis.call('DEL', key)
end
return before
)";

}
