-- Lengthens the life of keys of a bucket, and never shortens one.
--
-- The caller extends meta first, so that what is written from then on lives as long, then the others.
--
-- KEYS[1] any key of the bucket, and up to 255 more; meta may only be the first
--
-- ARGV[1] until            in milliseconds
-- ARGV[2] with_meta        1: KEYS[1] is meta, whose retention_until_ms moves as well
-- ARGV[3] now_ms_override  0: Redis TIME; more: for tests alone
--
-- Reply {code, keys that live longer now}, checked in this order:
--   1 the new end is no canonical integer or lies in the past: keys would vanish at once
--   0 done; a key that is absent is skipped, and one without any expiry gets one
--
-- Idempotent: a second call lengthens nothing. Complexity: O(k) in the number of keys.

local call = redis.call
local find = string.find

local until_ms = ARGV[1]

local function is_number(text)
  return text and #text <= 15 and find(text, '^%d+$') and not find(text, '^0%d')
end

local now = tonumber(ARGV[3]) or 0
if now <= 0 then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
if not is_number(until_ms) or tonumber(until_ms) <= now then
  return {1, 0}
end

-- The one write that a full memory refuses comes first; an expiry is never refused.
if ARGV[2] == '1' then
  local retention = call('HGET', KEYS[1], 'retention_until_ms')
  if is_number(retention) and tonumber(retention) < tonumber(until_ms) then
    call('HSET', KEYS[1], 'retention_until_ms', until_ms)
  end
end
local lengthened = 0
for _, key in ipairs(KEYS) do
  -- GT alone would leave a key without an expiry as it is: to Redis that one lives longest.
  local option = call('PEXPIRETIME', key) == -1 and 'NX' or 'GT'
  lengthened = lengthened + call('PEXPIREAT', key, until_ms, option)
end
return {0, lengthened}
