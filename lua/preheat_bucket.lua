-- Writes a bucket's meta and stock where they are absent. It never overwrites anything.
--
-- The caller calls it only while PostgreSQL says PREPARED and no decision exists for the version.
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
--
-- Reply {code, detail}, checked in this order:
--   3 bad argument, detail its name: no canonical integer of at most 15 digits, or a sale that ends
--     before it starts
--   2 the retention has passed: keys written now would vanish at once, detail empty
--   1 stock is absent although meta is past PREPARED, detail its state: rebuild instead
--   0 done, detail what was written: "meta stock", "meta", "stock" or empty
--
-- Idempotent: a second call changes nothing. Complexity: O(1).

local call = redis.call
local find = string.find

local meta_key = KEYS[1]
local stock_key = KEYS[2]

local NAMES = {[3] = 'bucket_id', [4] = 'version', [5] = 'starts_at_ms', [6] = 'ends_at_ms',
  [7] = 'retention_until_ms', [8] = 'schema_version', [9] = 'bucket_count', [10] = 'limit_per_user',
  [11] = 'max_quantity', [12] = 'reservation_ttl_ms', [13] = 'secret_version', [14] = 'initial'}
for index = 3, 14 do
  local number = ARGV[index]
  local digits_max = index == 4 and 16 or 15
  if not find(number, '^%d+$') or find(number, '^0%d') or #number > digits_max then
    return {3, NAMES[index]}
  end
end
local retention = ARGV[7]
if tonumber(ARGV[5]) > tonumber(ARGV[6]) then
  return {3, 'ends_at_ms'}
end
local now = tonumber(ARGV[15]) or 0
if now <= 0 then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
if now >= tonumber(retention) then
  return {2, ''}
end

local meta_absent = call('HLEN', meta_key) == 0
local stock_absent = call('HLEN', stock_key) == 0
if stock_absent and not meta_absent then
  local state = call('HGET', meta_key, 'state') or ''
  if state ~= 'PREPARED' then
    return {1, state}
  end
end
local written = ''
if meta_absent then
  call('HSET', meta_key, 'activity_id', ARGV[1], 'sku_id', ARGV[2], 'bucket_id', ARGV[3],
    'version', ARGV[4], 'state', 'PREPARED', 'starts_at_ms', ARGV[5], 'ends_at_ms', ARGV[6],
    'retention_until_ms', retention, 'schema_version', ARGV[8], 'bucket_count', ARGV[9],
    'limit_per_user', ARGV[10], 'max_quantity', ARGV[11], 'reservation_ttl_ms', ARGV[12],
    'secret_version', ARGV[13], 'recovery', '')
  call('PEXPIREAT', meta_key, retention)
  written = 'meta'
end
if stock_absent then
  call('HSET', stock_key, 'initial', ARGV[14], 'available', ARGV[14], 'reserved', '0',
    'released_total', '0')
  call('PEXPIREAT', stock_key, retention)
  written = meta_absent and 'meta stock' or 'stock'
end
return {0, written}
