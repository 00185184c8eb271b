-- Records the end of a reservation that Redis lost: it was rejected, released or cancelled.
--
-- Without it a repeat of the request would be accepted afresh and hold a unit until somebody notices.
-- It moves no counters, and a marker that still names the reservation goes: it holds nothing.
--
-- KEYS[1] meta               hash
-- KEYS[2] stock              hash, read alone
-- KEYS[3] req:<shard>        hash
-- KEYS[4] user:<user_id>     string, reservation_id
-- KEYS[5] resv:<id>          hash
-- KEYS[6] send_pending       zset
-- KEYS[7] reservation_expiry zset
--
-- ARGV[1] reservation_id
-- ARGV[2] request_id
-- ARGV[3] message_id
-- ARGV[4] activity_id
-- ARGV[5] sku_id
-- ARGV[6] user_id
-- ARGV[7] activity_version
-- ARGV[8] bucket_id
-- ARGV[9] quantity
-- ARGV[10] order_id          given: ORDER_CANCELLED; empty: RELEASED
-- ARGV[11] reserved_at_ms
-- ARGV[12] schema_version
-- ARGV[13] traceparent
-- ARGV[14] now_ms_override   0: Redis TIME; more: for tests alone
-- ARGV[15] release_reason    recorded with RELEASED
--
-- Reply {code, status, detail}, checked in this order:
--   1 ALREADY_THERE, or 5 RESERVATION_ID_CONFLICT when the record is another request's, user's, order's
--     or quantity's; status as stored. Whatever its state, it is not touched
--   4 INVARIANT_VIOLATION      BAD_ARGUMENT
--   3 CONFIG_MISSING           META_MISSING
--   4 INVARIANT_VIOLATION      META_SCOPE_MISMATCH or INVALID_META_TIME
--   3 CONFIG_MISSING           RETENTION_PASSED
--   0 WRITTEN. The request is remembered as accepted, so that its repeat finds this end, unless
--     an acceptance is remembered, or the answer to another user who took the same request id
--
-- Idempotent: a second call changes nothing and answers 1.
-- Complexity: O(log n) in the members of the two zsets.
-- Parts: lost.
-- luacheck: read_globals clock digits lost_from place_for counters write_lost remember_accepted

local call = redis.call

local stock_key = KEYS[2]
local request_key = KEYS[3]
local user_key = KEYS[4]
local reservation_key = KEYS[5]
local pending_key = KEYS[6]
local expiry_key = KEYS[7]
local lost = lost_from(1)
local now = clock(ARGV[14])

local retention, answer = place_for(lost, KEYS[1], reservation_key, now)
if not retention then
  return answer
end
-- Also for their types: no write may fail once the first has happened.
local stock = counters(stock_key)
local remembered = call('HGET', request_key, lost.request_id)
local marker = call('GET', user_key)
call('ZCARD', pending_key)
call('ZCARD', expiry_key)

local status
if lost.order_id ~= '' then
  status = 'ORDER_CANCELLED'
  write_lost(lost, reservation_key, retention, now, status,
    'order_id', lost.order_id, 'released_at_ms', digits(now))
else
  status = 'RELEASED'
  write_lost(lost, reservation_key, retention, now, status,
    'release_reason', ARGV[15], 'released_at_ms', digits(now))
end
local code, owner = string.match(remembered or '', '^(%d+)|[^|]*|[^|]*|[^|]*|([^|]*)|')
if not code or (code ~= '0' and owner == lost.user_id) then
  remember_accepted(lost, request_key, retention, stock and stock.available or 0)
end
if marker == lost.reservation_id then
  call('DEL', user_key)
end
call('ZREM', pending_key, lost.reservation_id)
call('ZREM', expiry_key, lost.reservation_id)
return {0, status, ''}
