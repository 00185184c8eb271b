-- Brings an ordered reservation back that Redis lost, if its units are available.
--
-- The caller has made sure that PostgreSQL holds an active order for it.
--
-- KEYS[1] meta               hash
-- KEYS[2] stock              hash
-- KEYS[3] req:<shard>        hash
-- KEYS[4] user:<user_id>     string, reservation_id
-- KEYS[5] resv:<id>          hash
-- KEYS[6] send_pending       zset
-- KEYS[7] reservation_expiry zset
-- KEYS[8] soldout            string
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
-- ARGV[10] order_id
-- ARGV[11] reserved_at_ms
-- ARGV[12] schema_version
-- ARGV[13] traceparent
-- ARGV[14] now_ms_override   0: Redis TIME; more: for tests alone
--
-- Reply {code, status, detail}, checked in this order:
--   1 ALREADY_THERE, or 5 RESERVATION_ID_CONFLICT when the record is another request's, user's, order's
--     or quantity's; status as stored. Whatever its state, it is not touched
--   4 INVARIANT_VIOLATION      BAD_ARGUMENT
--   3 CONFIG_MISSING           META_MISSING
--   4 INVARIANT_VIOLATION      META_SCOPE_MISMATCH or INVALID_META_TIME
--   3 CONFIG_MISSING           RETENTION_PASSED: keys written now would vanish at once; STOCK_MISSING
--   4 INVARIANT_VIOLATION      STOCK_INVARIANT_VIOLATION
--   2 WAITS                    fewer units are available than it holds; nothing is written
--   0 REBUILT: the units moved from available to reserved, the record says ORDER_CREATED, its request
--     is remembered as accepted whatever was remembered for it, and soldout is as available says.
--     Detail MARKER_KEPT when the user's marker names another reservation: see repair_marker
--
-- Idempotent: a second call changes nothing and answers 1.
-- Complexity: O(log n) in the members of the two zsets.
-- Parts: lost, ordered.
-- luacheck: read_globals clock digits lost_from counters plan_return write_return

local call = redis.call

local stock_key = KEYS[2]
local keys = {
  meta = KEYS[1], request = KEYS[3], user = KEYS[4], reservation = KEYS[5], send_pending = KEYS[6],
  reservation_expiry = KEYS[7], soldout = KEYS[8],
}
local lost = lost_from(1)
local now = clock(ARGV[14])

local retention, answer, marker = plan_return(lost, keys, now)
if not retention then
  return answer
end
local stock = counters(stock_key)
if stock == nil then
  return {3, '', 'STOCK_MISSING'}
end
if not stock then
  return {4, '', 'STOCK_INVARIANT_VIOLATION'}
end
local remaining = stock.available - lost.quantity
if remaining < 0 then
  return {2, '', ''}
end
call('HSET', stock_key, 'available', digits(remaining), 'reserved', digits(stock.reserved + lost.quantity))
write_return(lost, keys, retention, remaining, now)
return {0, 'ORDER_CREATED', marker and marker ~= lost.reservation_id and 'MARKER_KEPT' or ''}
