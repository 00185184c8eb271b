-- Part of compensate and cancel: units go back on sale, once, or to an ordered reservation that waits.
-- luacheck: ignore 211
-- luacheck: read_globals LOST_ARGS is_number clock digits lost_from counters plan_return write_return

local call = redis.call

-- Where an ordered reservation that waits for its rebuild finds its keys, and its arguments begin.
local WAITING_KEYS = 6
local WAITING_ARGS = 4

-- The plan of the waiting reservation's return out of `available` units; nil when there is none, or it
-- is back already, or does not fit. Damage in what is its own must not hold up the release: pcall.
local function plan_waiting(available, now)
  if #KEYS == WAITING_KEYS or #ARGV < WAITING_ARGS + LOST_ARGS then
    return nil
  end
  local lost = lost_from(WAITING_ARGS + 1)
  local keys = {
    meta = KEYS[7], request = KEYS[8], user = KEYS[9], reservation = KEYS[10],
    send_pending = KEYS[4], reservation_expiry = KEYS[5], soldout = KEYS[6],
  }
  local readable, retention = pcall(plan_return, lost, keys, now)
  local quantity = tonumber(lost.quantity)
  if not readable or not retention or quantity > available then
    return nil
  end
  return {lost = lost, keys = keys, retention = retention, quantity = quantity}
end

-- Moves a reservation from one of the states in `from` to `target` and its units back. `fields` are
-- the record's further changes; `order_id`, when given, must be the one on record if there is one.
local function give_back(from, target, fields, order_id)
  local stock_key, user_key, reservation_key = KEYS[1], KEYS[2], KEYS[3]
  local pending_key, expiry_key, soldout_key = KEYS[4], KEYS[5], KEYS[6]
  local reservation_id = ARGV[1]
  local user_id = ARGV[4] or ''

  if call('EXISTS', reservation_key) == 0 then
    return {2, '', 0}
  end
  local held = call('HMGET', reservation_key, 'reservation_id', 'user_id', 'status', 'quantity',
    'order_id')
  local status, quantity, ordered = held[3] or '', held[4], held[5] or ''
  if held[1] ~= reservation_id or (user_id ~= '' and held[2] ~= user_id)
    or (order_id and ordered ~= '' and ordered ~= order_id) then
    return {5, status, 0}
  end
  if status == target then
    return {1, status, 0}
  end
  if not from[status] then
    return {3, status, 0}
  end
  local stock = counters(stock_key)
  if not stock or not is_number(quantity) or quantity == '0'
    or not is_number(stock.released_total) or stock.reserved < tonumber(quantity) then
    return {4, status, 0}
  end

  -- Read for their types: no write below may fail once the first has happened.
  local marker = call('GET', user_key)
  call('ZCARD', pending_key)
  call('ZCARD', expiry_key)

  local now = clock(ARGV[3])
  local available = stock.available + quantity
  local reserved = stock.reserved - quantity
  local waiting = plan_waiting(available, now)
  if waiting then
    available = available - waiting.quantity
    reserved = reserved + waiting.quantity
  end
  local at = digits(now)
  call('HSET', reservation_key, 'status', target, 'released_at_ms', at, 'updated_at_ms', at,
    unpack(fields))
  call('HSET', stock_key, 'available', digits(available), 'reserved', digits(reserved),
    'released_total', digits(stock.released_total + quantity))
  if marker == reservation_id then
    call('DEL', user_key)
  end
  call('ZREM', pending_key, reservation_id)
  call('ZREM', expiry_key, reservation_id)
  if not waiting then
    call('DEL', soldout_key)
    return {0, target, 0}
  end
  write_return(waiting.lost, waiting.keys, waiting.retention, available, now)
  return {0, target, 1}
end
