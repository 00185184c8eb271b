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

local holder_key = KEYS[1]
local behind_key = KEYS[2]

local what = ARGV[1]
local reservation_id = ARGV[2]
local owner = ARGV[3]

-- Whether the reservation exists, is the owner's by this field, and holds its units.
local function is_held(field)
  local held = call('HMGET', behind_key, field, 'status')
  return held[1] == owner and held[2] and held[2] ~= 'RELEASED' and held[2] ~= 'ORDER_CANCELLED'
end

if what == 'member' then
  if not call('ZSCORE', holder_key, reservation_id) then
    return {1}
  end
  if call('EXISTS', behind_key) == 1 then
    return {2}
  end
  call('ZREM', holder_key, reservation_id)
elseif what == 'marker' then
  if call('GET', holder_key) ~= reservation_id then
    return {1}
  end
  if is_held('user_id') then
    return {2}
  end
  call('DEL', holder_key)
elseif what == 'answer' then
  if not call('HGET', holder_key, owner) then
    return {1}
  end
  if not is_held('request_id') then
    return {2}
  end
  call('HDEL', holder_key, owner)
else
  if call('EXISTS', holder_key) == 0 then
    return {1}
  end
  local available = tonumber(call('HGET', behind_key, 'available') or '') or 0
  if available <= 0 then
    return {2}
  end
  call('DEL', holder_key)
end
return {0}
