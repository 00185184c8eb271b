-- Writes whether a bucket is in recovery into its meta, and changes nothing else.
--
-- KEYS[1] meta  hash
--
-- ARGV[1] activity_id
-- ARGV[2] sku_id
-- ARGV[3] version
-- ARGV[4] bucket_id
-- ARGV[5] recovery   empty, window or rebuild
-- ARGV[6] expected   the same words: write only over this one; any: over every one
--
-- Reply {code, recovery in meta before}, checked in this order:
--   2 meta is missing, recovery empty
--   3 meta names another activity, SKU, version or bucket
--   1 unchanged: it is there already
--   4 moved: it is not what the caller expected
--   0 set
--
-- Idempotent. Complexity: O(1).

local call = redis.call

local meta_key = KEYS[1]
local target = ARGV[5]
local expected = ARGV[6]

if call('EXISTS', meta_key) == 0 then
  return {2, ''}
end
local meta = call('HMGET', meta_key, 'activity_id', 'sku_id', 'version', 'bucket_id', 'recovery')
local recovery = meta[5] or ''
if meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] or meta[3] ~= ARGV[3] or meta[4] ~= ARGV[4] then
  return {3, recovery}
end
if recovery == target then
  return {1, recovery}
end
if expected ~= 'any' and recovery ~= expected then
  return {4, recovery}
end
call('HSET', meta_key, 'recovery', target)
return {0, recovery}
