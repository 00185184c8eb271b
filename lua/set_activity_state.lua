-- Writes PostgreSQL's state of an activity into a bucket's meta, and changes nothing else.
--
-- PostgreSQL has ruled on the step. Redis may be several steps behind after a failover, so any state
-- may be written over any other, but for two that no failover explains.
--
-- KEYS[1] meta  hash
--
-- ARGV[1] activity_id
-- ARGV[2] sku_id
-- ARGV[3] version
-- ARGV[4] bucket_id
-- ARGV[5] state
--
-- Reply {code, state in meta before}, checked in this order:
--   2 meta is missing, state empty
--   3 meta names another activity, SKU, version or bucket
--   1 unchanged: the state is there already
--   4 refused: out of CLOSED, back to PREPARED, or to no known state
--   0 updated
--
-- Idempotent. Complexity: O(1).

local call = redis.call

local meta_key = KEYS[1]
local target = ARGV[5]

if call('EXISTS', meta_key) == 0 then
  return {2, ''}
end
local meta = call('HMGET', meta_key, 'activity_id', 'sku_id', 'version', 'bucket_id', 'state')
local state = meta[5] or ''
if meta[1] ~= ARGV[1] or meta[2] ~= ARGV[2] or meta[3] ~= ARGV[3] or meta[4] ~= ARGV[4] then
  return {3, state}
end
if state == target then
  return {1, state}
end
if state == 'CLOSED' or (target ~= 'ACTIVE' and target ~= 'PAUSED' and target ~= 'CLOSED') then
  return {4, state}
end
call('HSET', meta_key, 'state', target)
return {0, state}
