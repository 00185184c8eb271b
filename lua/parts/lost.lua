-- Part of rebuild_reservation, write_tombstone, compensate and cancel: a reservation that Redis lost,
-- as PostgreSQL knows it, and how it is written down again. A script that uses a part is loaded with
-- the part in front of it.
-- luacheck: ignore 211

local call = redis.call
local find = string.find

-- How many arguments describe a lost reservation.
local LOST_ARGS = 13

-- Whether a text is a canonical non-negative integer of at most 15 digits, which a double holds.
local function is_number(text)
  return text and #text <= 15 and find(text, '^%d+$') and not find(text, '^0%d')
end

-- The time in milliseconds: the override of a test, or Redis TIME.
local function clock(override)
  local now = tonumber(override) or 0
  if now <= 0 then
    local time = call('TIME')
    now = time[1] * 1000 + math.floor(time[2] / 1000)
  end
  return now
end

local function digits(number)
  return string.format('%.0f', number)
end

-- The reservation that the arguments from `first` on describe.
local function lost_from(first)
  return {
    reservation_id = ARGV[first],
    request_id = ARGV[first + 1],
    message_id = ARGV[first + 2],
    activity_id = ARGV[first + 3],
    sku_id = ARGV[first + 4],
    user_id = ARGV[first + 5],
    activity_version = ARGV[first + 6],
    bucket_id = ARGV[first + 7],
    quantity = ARGV[first + 8],
    order_id = ARGV[first + 9],
    reserved_at_ms = ARGV[first + 10],
    schema_version = ARGV[first + 11],
    traceparent = ARGV[first + 12],
  }
end

-- Whether it is lost at all, and until when its record would live: the retention. Otherwise nil and
-- the answer {code, status, detail}.
local function place_for(lost, meta_key, reservation_key, now)
  if call('EXISTS', reservation_key) == 1 then
    local held = call('HMGET', reservation_key, 'reservation_id', 'request_id', 'user_id', 'quantity',
      'order_id', 'status')
    local order_id = held[5] or ''
    local same = held[1] == lost.reservation_id and held[2] == lost.request_id
      and held[3] == lost.user_id and held[4] == lost.quantity
      and (order_id == '' or lost.order_id == '' or order_id == lost.order_id)
    return nil, {same and 1 or 5, held[6] or '', ''}
  end
  if not is_number(lost.quantity) or lost.quantity == '0' or not is_number(lost.reserved_at_ms) then
    return nil, {4, '', 'BAD_ARGUMENT'}
  end
  local meta = call('HMGET', meta_key, 'activity_id', 'sku_id', 'version', 'bucket_id',
    'retention_until_ms')
  local retention = meta[5]
  if not (meta[1] or meta[2] or meta[3] or meta[4] or retention) then
    return nil, {3, '', 'META_MISSING'}
  end
  if meta[1] ~= lost.activity_id or meta[2] ~= lost.sku_id or meta[3] ~= lost.activity_version
    or meta[4] ~= lost.bucket_id then
    return nil, {4, '', 'META_SCOPE_MISMATCH'}
  end
  if not is_number(retention) then
    return nil, {4, '', 'INVALID_META_TIME'}
  end
  if now >= tonumber(retention) then
    return nil, {3, '', 'RETENTION_PASSED'}
  end
  return retention
end

-- The counters as numbers; nil when they are missing, false when they contradict themselves.
local function counters(stock_key)
  local stock = call('HMGET', stock_key, 'initial', 'available', 'reserved', 'released_total')
  if not (stock[1] and stock[2] and stock[3]) then
    return nil
  end
  if not (is_number(stock[1]) and is_number(stock[2]) and is_number(stock[3]))
    or stock[2] + stock[3] ~= tonumber(stock[1]) then
    return false
  end
  return {
    available = tonumber(stock[2]),
    reserved = tonumber(stock[3]),
    released_total = stock[4] or '0',
  }
end

-- Writes the record; the fields of its state follow. It was absent, so it needs its expiry. Nothing
-- is going to check it any more, so its own deadline is the instant at which it began.
local function write_lost(lost, reservation_key, retention, now, status, ...)
  call('HSET', reservation_key,
    'reservation_id', lost.reservation_id, 'request_id', lost.request_id,
    'message_id', lost.message_id, 'activity_id', lost.activity_id, 'sku_id', lost.sku_id,
    'user_id', lost.user_id, 'activity_version', lost.activity_version,
    'bucket_id', lost.bucket_id, 'quantity', lost.quantity, 'status', status,
    'reserved_at_ms', lost.reserved_at_ms, 'expires_at_ms', lost.reserved_at_ms,
    'updated_at_ms', digits(now), 'send_attempts', '0', 'schema_version', lost.schema_version,
    'traceparent', lost.traceparent, ...)
  call('PEXPIREAT', reservation_key, retention)
end

-- Remembers that the request was accepted, so that its repeat finds the reservation.
local function remember_accepted(lost, request_key, retention, remaining)
  call('HSET', request_key, lost.request_id, '0|' .. lost.reservation_id .. '|' .. digits(remaining)
    .. '|QUEUED|' .. lost.user_id .. '|' .. lost.quantity)
  call('PEXPIREAT', request_key, retention, 'NX')
end
