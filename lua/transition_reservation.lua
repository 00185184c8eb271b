-- Moves a reservation one step of its life: compare and set. It never touches stock.
--
-- KEYS[1] resv:<id>          hash
-- KEYS[2] send_pending       zset, by next_retry_at_ms
-- KEYS[3] reservation_expiry zset
--
-- ARGV[1] reservation_id
-- ARGV[2] target             a state word
-- ARGV[3] now_ms             0: Redis TIME; more: for tests alone
-- ARGV[4] next_retry_at_ms   needed for SEND_UNKNOWN, else ignored
-- ARGV[5] message_id         compared with the record when given
-- ARGV[6] order_id           compared with the record when given; recorded by ORDER_CREATED
-- ARGV[7] error_code         recorded when given
--
-- Reply {code, status}, checked in this order:
--   2 NOT_FOUND, status empty
--   4 ID_CONFLICT         the record names another reservation, message or order
--   1 IDEMPOTENT          already there, and taken out of the indexes that it needs no more; a
--                         repeated SEND_UNKNOWN is 0 and moves its retry time
--   3 ILLEGAL_TRANSITION  not in the table; or SEND_UNKNOWN without a usable retry time
--   0 UPDATED
--
-- Idempotent. Complexity: O(log n) in the members of the two zsets.

local call = redis.call

local reservation_key = KEYS[1]
local pending_key = KEYS[2]
local expiry_key = KEYS[3]

local reservation_id = ARGV[1]
local target = ARGV[2]
local retry_at = ARGV[4] or ''
local message_id = ARGV[5] or ''
local order_id = ARGV[6] or ''
local error_code = ARGV[7] or ''

-- How long a reservation's own expiry is when damage has taken it: the default retention.
local RETENTION_MS = 604800000

if call('EXISTS', reservation_key) == 0 then
  return {2, ''}
end
local held = call('HMGET', reservation_key, 'reservation_id', 'status', 'message_id', 'order_id')
local status = held[2] or ''
if held[1] ~= reservation_id
  or (message_id ~= '' and held[3] and held[3] ~= '' and held[3] ~= message_id)
  or (order_id ~= '' and held[4] and held[4] ~= '' and held[4] ~= order_id) then
  return {4, status}
end

local step = status .. '>' .. target
if status == target and target ~= 'SEND_UNKNOWN' then
  -- A repeat also takes out of the indexes what a damaged or half restored one still names.
  if target ~= 'RESERVED' then
    call('ZCARD', expiry_key)
    call('ZREM', pending_key, reservation_id)
    if target == 'ORDER_CREATED' or target == 'RELEASED' or target == 'ORDER_CANCELLED' then
      call('ZREM', expiry_key, reservation_id)
    end
  end
  return {1, status}
end
if step ~= 'RESERVED>SEND_UNKNOWN' and step ~= 'RESERVED>ENQUEUED'
  and step ~= 'RESERVED>RELEASE_PENDING'
  and step ~= 'SEND_UNKNOWN>SEND_UNKNOWN' and step ~= 'SEND_UNKNOWN>ENQUEUED'
  and step ~= 'SEND_UNKNOWN>RELEASE_PENDING'
  and step ~= 'ENQUEUED>ORDER_CREATED' and step ~= 'ENQUEUED>REJECTED'
  and step ~= 'ENQUEUED>RELEASE_PENDING'
  and step ~= 'REJECTED>RELEASE_PENDING' then
  return {3, status}
end
local resend = target == 'SEND_UNKNOWN'
if resend and (#retry_at > 15 or not string.find(retry_at, '^[1-9]%d*$')) then
  return {3, status}
end

local now = tonumber(ARGV[3]) or 0
if now <= 0 then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
-- Read for their types: no write below may fail once the first has happened.
local pending_size = call('ZCARD', pending_key)
call('ZCARD', expiry_key)
local expires_at = 0
if resend and pending_size == 0 then
  -- The index is about to be created, and lives as long as what it points at.
  expires_at = call('PEXPIRETIME', reservation_key)
  if expires_at <= 0 then
    expires_at = now + RETENTION_MS
  end
end

local fields = {'status', target, 'updated_at_ms', string.format('%.0f', now)}
if message_id ~= '' and (not held[3] or held[3] == '') then
  fields[#fields + 1] = 'message_id'
  fields[#fields + 1] = message_id
end
if order_id ~= '' and target == 'ORDER_CREATED' then
  fields[#fields + 1] = 'order_id'
  fields[#fields + 1] = order_id
end
if error_code ~= '' then
  fields[#fields + 1] = 'error_code'
  fields[#fields + 1] = error_code
end
call('HSET', reservation_key, unpack(fields))
if resend then
  call('ZADD', pending_key, retry_at, reservation_id)
  if pending_size == 0 then
    call('PEXPIREAT', pending_key, expires_at)
  end
else
  call('ZREM', pending_key, reservation_id)
  if target == 'ORDER_CREATED' then
    call('ZREM', expiry_key, reservation_id)
  end
end
return {0, target}
