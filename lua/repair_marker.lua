-- Points a user's marker at an ordered reservation when it is missing or names one that holds nothing.
--
-- KEYS[1] user:<user_id>  string, reservation_id
-- KEYS[2] resv:<id>       hash, of the ordered reservation
-- KEYS[3] resv:<marker>   hash, of the one that the marker named; only when it named one
--
-- ARGV[1] reservation_id
-- ARGV[2] user_id
-- ARGV[3] marker           as the caller read it, empty for none
-- ARGV[4] now_ms_override  0: Redis TIME; more: for tests alone
--
-- Reply {code, status}, checked in this order:
--   2 NOT_ORDERED       the reservation is missing, another's, or not ORDER_CREATED; its status
--   1 ALREADY_RIGHT
--   4 RETRY             the marker is not what the caller read, status empty
--   3 HELD_BY_ANOTHER   the one that it names is there and has not ended; that one's status
--   0 REPAIRED          status ORDER_CREATED
--
-- Idempotent. Complexity: O(1).

local call = redis.call

local user_key = KEYS[1]
local reservation_key = KEYS[2]
local other_key = KEYS[3]

local reservation_id = ARGV[1]
local expected = ARGV[3]

-- How long the marker lives when damage has taken the reservation's own expiry: the default retention.
local RETENTION_MS = 604800000

local held = call('HMGET', reservation_key, 'reservation_id', 'user_id', 'status')
if held[1] ~= reservation_id or held[2] ~= ARGV[2] or held[3] ~= 'ORDER_CREATED' then
  return {2, held[3] or ''}
end
local marker = call('GET', user_key) or ''
if marker == reservation_id then
  return {1, held[3]}
end
if marker ~= expected then
  return {4, ''}
end
if marker ~= '' and call('EXISTS', other_key) == 1 then
  local status = call('HGET', other_key, 'status') or ''
  if status ~= 'RELEASED' and status ~= 'ORDER_CANCELLED' then
    return {3, status}
  end
end

-- The marker lives as long as the reservation that it names, and no shorter than it did.
local expires_at = math.max(call('PEXPIRETIME', reservation_key), call('PEXPIRETIME', user_key))
if expires_at <= 0 then
  local now = tonumber(ARGV[4]) or 0
  if now <= 0 then
    local time = call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  expires_at = now + RETENTION_MS
end
call('SET', user_key, reservation_id, 'PXAT', string.format('%.0f', expires_at))
return {0, held[3]}
