-- Takes one due reservation for sending, so that two scanners never send it at once.
--
-- KEYS[1] resv:<id>     hash
-- KEYS[2] send_pending  zset, by next_retry_at_ms
--
-- ARGV[1] reservation_id
-- ARGV[2] expected_score  as the caller read it
-- ARGV[3] lease_until     the new score, in milliseconds
--
-- Reply {code, detail}, checked in this order:
--   2 no member any more, detail empty
--   1 somebody else moved it, detail its score
--   4 the reservation is missing; postponed to the lease's end, detail empty
--   5 the reservation is damaged; postponed to the lease's end, detail says how
--   3 it needs no sending; removed from the index, detail its status
--   0 claimed: score at the lease's end, send_attempts one up, detail all fields and values
--
-- Not idempotent by design: a repeat whose first answer was lost is told 1, and the claim runs out.
-- Complexity: O(log n) in the members of send_pending.

local call = redis.call

local reservation_key = KEYS[1]
local pending_key = KEYS[2]

local reservation_id = ARGV[1]
local lease_until = ARGV[3]

local score = call('ZSCORE', pending_key, reservation_id)
if not score then
  return {2, ''}
end
if tonumber(score) ~= tonumber(ARGV[2]) then
  return {1, score}
end

local damage
local held = {}
if call('TYPE', reservation_key).ok == 'hash' then
  held = call('HMGET', reservation_key, 'reservation_id', 'status', 'send_attempts')
  local attempts = held[3] or '0'
  if held[1] ~= reservation_id then
    damage = 'RESERVATION_ID_CONFLICT'
  elseif #attempts > 15 or not string.find(attempts, '^%d+$') or string.find(attempts, '^0%d') then
    damage = 'CORRUPTED_SEND_ATTEMPTS'
  end
elseif call('EXISTS', reservation_key) == 0 then
  call('ZADD', pending_key, 'XX', lease_until, reservation_id)
  return {4, ''}
else
  damage = 'WRONG_TYPE'
end
local status = held[2] or ''
local sendable = status == 'RESERVED' or status == 'SEND_UNKNOWN'
if not damage and not sendable then
  if status == 'ENQUEUED' or status == 'ORDER_CREATED' or status == 'REJECTED'
    or status == 'RELEASE_PENDING' or status == 'RELEASED' or status == 'ORDER_CANCELLED' then
    call('ZREM', pending_key, reservation_id)
    return {3, status}
  end
  damage = 'UNKNOWN_STATUS'
end
call('ZADD', pending_key, 'XX', lease_until, reservation_id)
if damage then
  return {5, damage}
end
call('HINCRBY', reservation_key, 'send_attempts', 1)
return {0, call('HGETALL', reservation_key)}
