-- Part of rebuild_reservation, compensate and cancel: the return of an ordered reservation.
-- luacheck: ignore 211
-- luacheck: read_globals place_for write_lost remember_accepted

local call = redis.call

-- Reads all that a return writes, but for the stock. The retention if it may happen, otherwise nil and
-- the answer of rebuild_reservation; third the marker of the user, if there is one.
local function plan_return(lost, keys, now)
  local retention, answer = place_for(lost, keys.meta, keys.reservation, now)
  if not retention then
    return nil, answer
  end
  -- For their types alone: no write may fail once the first has happened.
  call('HLEN', keys.request)
  call('ZCARD', keys.send_pending)
  call('ZCARD', keys.reservation_expiry)
  return retention, nil, call('GET', keys.user)
end

-- Writes the return; `remaining` units are left after it. A marker that is there stays, whatever it
-- names: only repair_marker can tell whether that one holds units.
local function write_return(lost, keys, retention, remaining, now)
  write_lost(lost, keys.reservation, retention, now, 'ORDER_CREATED', 'order_id', lost.order_id)
  remember_accepted(lost, keys.request, retention, remaining)
  call('SET', keys.user, lost.reservation_id, 'NX', 'PXAT', retention)
  call('ZREM', keys.send_pending, lost.reservation_id)
  call('ZREM', keys.reservation_expiry, lost.reservation_id)
  if remaining == 0 then
    call('SET', keys.soldout, '1', 'NX', 'PXAT', retention)
  else
    call('DEL', keys.soldout)
  end
end
