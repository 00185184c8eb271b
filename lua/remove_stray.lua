-- Removes what names a reservation that does not need it: an index member, a user's marker, a remembered
-- answer; or a sold-out mark while units are available.
--
-- KEYS[1] holder  send_pending or reservation_expiry, user:<user_id>, req shard, or soldout
-- KEYS[2] behind  resv:<id> of the reservation that is named; for soldout: stock
--
-- ARGV[1] what            member, marker, answer or soldout
-- ARGV[2] reservation_id  the one that is named; empty for soldout
-- ARGV[3] owner           the marker's user_id, the answer's request_id; else empty
--
-- Reply {code}, checked in this order:
--   1 GONE     it is not there; or the marker names another reservation
--   2 NEEDED   member: the reservation exists; marker: it is the user's and has not ended; answer: no
--              reservation of this request holds units, from which a repeat would make the answer again;
--              soldout: nothing is available
--   0 REMOVED
--
-- Idempotent. Complexity: O(log n) in the members of an index.

local call = redis.call

-- What they are depends on what is to be taken out.
local index_key, user_key, req_key, soldout_key = KEYS[1], KEYS[1], KEYS[1], KEYS[1]
local resv_key, stock_key = KEYS[2], KEYS[2]

local what = ARGV[1]
local reservation_id = ARGV[2]
local owner = ARGV[3]

-- Whether the reservation exists, is the owner's by this field, and holds its units.
local function is_held(field)
  local held = call('HMGET', resv_key, field, 'status')
  return held[1] == owner and held[2] and held[2] ~= 'RELEASED' and held[2] ~= 'ORDER_CANCELLED'
end

if what == 'member' then
  if not call('ZSCORE', index_key, reservation_id) then
    return {1}
  end
  if call('EXISTS', resv_key) == 1 then
    return {2}
  end
  call('ZREM', index_key, reservation_id)
elseif what == 'marker' then
  if call('GET', user_key) ~= reservation_id then
    return {1}
  end
  if is_held('user_id') then
    return {2}
  end
  call('DEL', user_key)
elseif what == 'answer' then
  if not call('HGET', req_key, owner) then
    return {1}
  end
  if not is_held('request_id') then
    return {2}
  end
  call('HDEL', req_key, owner)
else
  if call('EXISTS', soldout_key) == 0 then
    return {1}
  end
  local available = tonumber(call('HGET', stock_key, 'available') or '') or 0
  if available <= 0 then
    return {2}
  end
  call('DEL', soldout_key)
end
return {0}
