-- Writes a bucket's meta and stock anew after a loss, closed to buyers.
--
-- The caller calls it only while PostgreSQL says PAUSED (or CLOSED), first without `held`: that closes the
-- bucket and says whether its stock is missing. While it is, no script moves units, so the caller then
-- adds up what the reservations that are left hold, and calls again with the sum. The other units are
-- available; each ordered reservation that was lost takes its own back by rebuild_reservation. Until
-- set_recovery ends the rebuild, the reserve script answers 17.
--
-- KEYS[1] meta   hash
-- KEYS[2] stock  hash
--
-- ARGV[1] activity_id
-- ARGV[2] sku_id
-- ARGV[3] bucket_id
-- ARGV[4] version
-- ARGV[5] starts_at_ms
-- ARGV[6] ends_at_ms
-- ARGV[7] retention_until_ms
-- ARGV[8] schema_version
-- ARGV[9] bucket_count
-- ARGV[10] limit_per_user
-- ARGV[11] max_quantity
-- ARGV[12] reservation_ttl_ms
-- ARGV[13] secret_version
-- ARGV[14] initial            units of this bucket
-- ARGV[15] now_ms_override    0: Redis TIME; more: for tests alone
-- ARGV[16] held               units that reservations of this bucket hold; empty: write no stock
--
-- Reply {code, detail, missing}, checked in this order:
--   3 bad argument, detail its name: no canonical integer of at most 15 digits, or a sale that ends
--     before it starts
--   2 the retention has passed: keys written now would vanish at once, detail empty
--   1 meta names another activity, SKU, version or bucket, detail empty
--   4 stock is missing and more units are held than this bucket ever had, detail empty
--   0 done, detail what was written: "meta stock", "meta", "stock" or empty; missing is "stock" when
--     that is still to be written, else empty. A meta that is there becomes PAUSED, unless it is CLOSED,
--     and says "rebuild"; but where both are there it is left alone unless it says PAUSED or "rebuild":
--     a call that comes late must not close a version that sells again. A stock that is there stays as
--     it is, so that a second call gives no unit twice
--
-- Idempotent: a second call changes nothing. Complexity: O(1).

local call = redis.call
local find = string.find

local meta_key = KEYS[1]
local stock_key = KEYS[2]

local NAMES = {[3] = 'bucket_id', [4] = 'version', [5] = 'starts_at_ms', [6] = 'ends_at_ms',
  [7] = 'retention_until_ms', [8] = 'schema_version', [9] = 'bucket_count', [10] = 'limit_per_user',
  [11] = 'max_quantity', [12] = 'reservation_ttl_ms', [13] = 'secret_version', [14] = 'initial',
  [16] = 'held'}
local held = ARGV[16]
for index = 3, 16 do
  local number = ARGV[index]
  local digits_max = index == 4 and 16 or 15
  if NAMES[index] and not (index == 16 and held == '')
    and (not find(number, '^%d+$') or find(number, '^0%d') or #number > digits_max) then
    return {3, NAMES[index], ''}
  end
end
local retention = ARGV[7]
if tonumber(ARGV[5]) > tonumber(ARGV[6]) then
  return {3, 'ends_at_ms', ''}
end
local now = tonumber(ARGV[15]) or 0
if now <= 0 then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
if now >= tonumber(retention) then
  return {2, '', ''}
end

local meta = call('HMGET', meta_key, 'activity_id', 'sku_id', 'bucket_id', 'version', 'state',
  'recovery')
local meta_absent = call('HLEN', meta_key) == 0
if not meta_absent and (meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] or meta[3] ~= ARGV[3]
  or meta[4] ~= ARGV[4]) then
  return {1, '', ''}
end
local stock_absent = call('HLEN', stock_key) == 0
local available = tonumber(ARGV[14]) - (tonumber(held) or 0)
if stock_absent and available < 0 then
  return {4, '', ''}
end
local state = meta[5] == 'CLOSED' and 'CLOSED' or 'PAUSED'
local concerned = stock_absent or meta[5] == 'PAUSED' or meta[6] == 'rebuild'
local written = ''
if meta_absent then
  call('HSET', meta_key, 'activity_id', ARGV[1], 'sku_id', ARGV[2], 'bucket_id', ARGV[3],
    'version', ARGV[4], 'state', state, 'starts_at_ms', ARGV[5], 'ends_at_ms', ARGV[6],
    'retention_until_ms', retention, 'schema_version', ARGV[8], 'bucket_count', ARGV[9],
    'limit_per_user', ARGV[10], 'max_quantity', ARGV[11], 'reservation_ttl_ms', ARGV[12],
    'secret_version', ARGV[13], 'recovery', 'rebuild')
  call('PEXPIREAT', meta_key, retention)
  written = 'meta'
elseif concerned and (meta[5] ~= state or meta[6] ~= 'rebuild') then
  call('HSET', meta_key, 'state', state, 'recovery', 'rebuild')
  written = 'meta'
end
if stock_absent and held ~= '' then
  call('HSET', stock_key, 'initial', ARGV[14], 'available', string.format('%.0f', available),
    'reserved', held, 'released_total', '0')
  call('PEXPIREAT', stock_key, retention)
  written = written == '' and 'stock' or 'meta stock'
end
return {0, written, stock_absent and held == '' and 'stock' or ''}
