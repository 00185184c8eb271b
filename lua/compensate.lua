-- Puts the units of a reservation that will not become an order back on sale, once.
--
-- The caller has made sure that PostgreSQL can never order it (the release fence).
--
-- KEYS[1] stock              hash
-- KEYS[2] user:<user_id>     string, reservation_id
-- KEYS[3] resv:<id>          hash
-- KEYS[4] send_pending       zset
-- KEYS[5] reservation_expiry zset
-- KEYS[6] soldout            string
--
-- ARGV[1] reservation_id
-- ARGV[2] release_reason
-- ARGV[3] now_ms_override    0: Redis TIME; more: for tests alone
-- ARGV[4] user_id            compared with the record when given
--
-- Reply {code, status}, checked in this order:
--   2 RESERVATION_NOT_FOUND, status empty; nothing is ever added for a missing reservation
--   5 RESERVATION_ID_CONFLICT  the record names another reservation or user
--   1 ALREADY_RELEASED
--   3 NOT_COMPENSATABLE        any state but REJECTED and RELEASE_PENDING
--   4 INVARIANT_VIOLATION      the quantity or the counters contradict themselves
--   0 RELEASED
--
-- Idempotent: a second call changes nothing and answers 1.
-- Complexity: O(log n) in the members of the two zsets.

local call = redis.call
local find = string.find

local stock_key = KEYS[1]
local user_key = KEYS[2]
local reservation_key = KEYS[3]
local pending_key = KEYS[4]
local expiry_key = KEYS[5]
local soldout_key = KEYS[6]

local reservation_id = ARGV[1]
local user_id = ARGV[4] or ''

if call('EXISTS', reservation_key) == 0 then
  return {2, ''}
end
local held = call('HMGET', reservation_key, 'reservation_id', 'user_id', 'status', 'quantity')
local status = held[3] or ''
if held[1] ~= reservation_id or (user_id ~= '' and held[2] ~= user_id) then
  return {5, status}
end
if status == 'RELEASED' then
  return {1, status}
end
if status ~= 'REJECTED' and status ~= 'RELEASE_PENDING' then
  return {3, status}
end

local quantity = held[4]
local stock = call('HMGET', stock_key, 'initial', 'available', 'reserved', 'released_total')
local initial, available, reserved, released = stock[1], stock[2], stock[3], stock[4] or '0'
if not (quantity and initial and available and reserved) then
  return {4, status}
end
local numbers = ' ' .. quantity .. ' ' .. initial .. ' ' .. available .. ' ' .. reserved .. ' '
  .. released
if not find(numbers, '^ [1-9]%d* %d+ %d+ %d+ %d+$') or find(numbers, ' 0%d')
  or #quantity > 15 or #initial > 15 or #available > 15 or #reserved > 15 or #released > 15
  or available + reserved ~= tonumber(initial) or tonumber(reserved) < tonumber(quantity) then
  return {4, status}
end

-- Read for their types: no write below may fail once the first has happened.
local marker = call('GET', user_key)
call('ZCARD', pending_key)
call('ZCARD', expiry_key)

local now = tonumber(ARGV[3]) or 0
if now <= 0 then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local at = string.format('%.0f', now)

call('HSET', reservation_key, 'status', 'RELEASED', 'release_reason', ARGV[2],
  'released_at_ms', at, 'updated_at_ms', at)
call('HSET', stock_key, 'available', available + quantity, 'reserved', reserved - quantity,
  'released_total', released + quantity)
if marker == reservation_id then
  call('DEL', user_key)
end
call('ZREM', pending_key, reservation_id)
call('ZREM', expiry_key, reservation_id)
call('DEL', soldout_key)
return {0, 'RELEASED'}
