-- Decides whether a buyer gets units of a bucket, and records the decision.
--
-- KEYS[1] meta               hash
-- KEYS[2] stock              hash
-- KEYS[3] req:<shard>        hash, request_id -> code|reservation_id|remaining|status|user_id|quantity
-- KEYS[4] user:<user_id>     string, reservation_id
-- KEYS[5] resv:<id>          hash
-- KEYS[6] send_pending       zset, by next_retry_at_ms
-- KEYS[7] reservation_expiry zset, by expires_at_ms
-- KEYS[8] soldout            string
--
-- ARGV[1] request_id
-- ARGV[2] reservation_id      derived from the request by the caller
-- ARGV[3] activity_id
-- ARGV[4] sku_id
-- ARGV[5] user_id
-- ARGV[6] activity_version    positive integer
-- ARGV[7] reservation_ttl_ms  positive integer
-- ARGV[8] schema_version      positive integer
-- ARGV[9] bucket_id           integer
-- ARGV[10] message_id
-- ARGV[11] now_ms_override    0: Redis TIME; more: for tests alone
-- ARGV[12] quantity           positive integer; 1 when absent
-- ARGV[13] max_quantity       positive integer; 1 when absent
-- ARGV[14] first_send_grace_ms integer; 2000 when absent
-- ARGV[15] negative_cache_max integer, fields of a shard; 4096 when absent
-- ARGV[16] traceparent        may be empty
-- ARGV[17] repeat             1: the caller may have asked before
-- ARGV[18] assume_window      1: behave as if meta.recovery were "window"
--
-- Reply {code, reservation_id, remaining, status, replay}, checked in this order:
--   20 BAD_ARGUMENT
--   (a remembered answer) 19 CORRUPTED_REQUEST_RESULT, 16 without any other field, else the first
--      code with replay 1; for code 0 with the live status: 19 RESERVATION_MISSING or
--      CORRUPTED_RESERVATION, 18
--   17 CONFIG_MISSING; 19 META_SCOPE_MISMATCH, INVALID_META_TIME, INVALID_META_RECOVERY; 17 REBUILDING
--   (an existing reservation) 0 with replay 1, remembered again; 18; 19 CORRUPTED_RESERVATION
--   10 the user holds another one, whose id is named; 19 CORRUPTED_USER_MARKER
--   14 version, 11 not started, 12 ended, 13 not active
--   17 STOCK_CONFIG_MISSING, 19 STOCK_INVARIANT_VIOLATION
--   15 not enough available
--   20 RESERVATION_TTL_TOO_LONG
--   0 accepted, status QUEUED
-- 10 to 15 are remembered while the shard has room. In a recovery window a marked repeat gets 21
-- instead of a fresh 10 to 15, and nothing is remembered.
--
-- Idempotent by request_id: an acceptance is remembered until the retention, and its reservation
-- outlives the loss of that memory.
-- Complexity: O(log n) in the members of the two zsets; 18 calls for an acceptance.
--
-- Every key that is written has been read before, so a wrong type fails the call while nothing is
-- written. The first write is a SET or an HSET, which Redis refuses when memory is full.

local call = redis.call
local find = string.find

local STATES = ' RESERVED SEND_UNKNOWN ENQUEUED ORDER_CREATED REJECTED RELEASE_PENDING'
  .. ' RELEASED ORDER_CANCELLED '

local meta_key = KEYS[1]
local stock_key = KEYS[2]
local request_key = KEYS[3]
local user_key = KEYS[4]
local reservation_key = KEYS[5]
local pending_key = KEYS[6]
local expiry_key = KEYS[7]
local soldout_key = KEYS[8]

local request_id = ARGV[1]
local reservation_id = ARGV[2]
local activity_id = ARGV[3]
local sku_id = ARGV[4]
local user_id = ARGV[5]
local version = ARGV[6]
local ttl = ARGV[7]
local bucket_id = ARGV[9]
local message_id = ARGV[10]
local quantity = ARGV[12] or '1'
local max_quantity = ARGV[13] or '1'
local grace = ARGV[14] or '2000'
local negative_max = ARGV[15] or '4096'

-- Numbers are checked together in one match: decimal, no sign, no leading zero, at most 15 digits,
-- which a double holds exactly.
if request_id == '' or reservation_id == '' or activity_id == '' or sku_id == '' or user_id == ''
  or message_id == ''
  or #request_id > 128 or #reservation_id > 128 or #user_id > 128
  or find(request_id .. reservation_id .. activity_id .. sku_id .. user_id, '[^%w_-]')
  or not find(version .. ' ' .. ttl .. ' ' .. ARGV[8] .. ' ' .. quantity .. ' ' .. max_quantity,
    '^[1-9]%d* [1-9]%d* [1-9]%d* [1-9]%d* [1-9]%d*$')
  or not find(grace .. ' ' .. negative_max .. ' ' .. bucket_id, '^%d+ %d+ %d+$')
  or #version > 16 or #ttl > 15 or #quantity > 15 or #grace > 15
  or tonumber(quantity) > tonumber(max_quantity) then
  return {20, '', 0, '', 0}
end

local cached = call('HGET', request_key, request_id)
if cached then
  local code, id, remaining, word, owner, units =
    string.match(cached, '^(%d+)|([%w_-]*)|(%d+)|([A-Z]*)|([%w_-]+)|([1-9]%d*)$')
  local accepted = code == '0'
  local names_one = accepted or code == '10'
  if not code or #id > 128 or #owner > 128 or #remaining > 15
    or (remaining ~= '0' and find(remaining, '^0'))
    or (names_one ~= (id ~= '')) or (accepted ~= (word == 'QUEUED')) or (not accepted and word ~= '')
    or (not accepted and not find(code, '^1[0-5]$')) then
    return {19, '', 0, 'CORRUPTED_REQUEST_RESULT', 0}
  end
  if owner ~= user_id or units ~= quantity then
    return {16, '', 0, '', 0}
  end
  if not accepted then
    return {tonumber(code), id, tonumber(remaining), '', 1}
  end
  local held = call('HMGET', reservation_key, 'reservation_id', 'request_id', 'user_id', 'quantity',
    'status')
  if not (held[1] or held[2] or held[3] or held[4] or held[5]) then
    return {19, '', 0, 'RESERVATION_MISSING', 0}
  end
  if not (held[1] and held[2] and held[3] and held[4] and held[5])
    or not find(STATES, ' ' .. held[5] .. ' ', 1, true) then
    return {19, '', 0, 'CORRUPTED_RESERVATION', 0}
  end
  if held[1] ~= id or id ~= reservation_id or held[2] ~= request_id or held[3] ~= user_id
    or held[4] ~= quantity then
    return {18, '', 0, '', 0}
  end
  return {0, id, tonumber(remaining), held[5], 1}
end

local meta = call('HMGET', meta_key, 'activity_id', 'sku_id', 'bucket_id', 'version', 'state',
  'starts_at_ms', 'ends_at_ms', 'retention_until_ms', 'recovery')
local recovery = meta[9]
if not (meta[1] or meta[2] or meta[3] or meta[4] or meta[5] or meta[6] or meta[7] or meta[8]
  or recovery) then
  return {17, '', 0, 'CONFIG_MISSING', 0}
end
if meta[1] ~= activity_id or meta[2] ~= sku_id or meta[3] ~= bucket_id then
  return {19, '', 0, 'META_SCOPE_MISMATCH', 0}
end

local now = tonumber(ARGV[11]) or 0
if now <= 0 then
  local time = call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local starts, ends, retention = meta[6], meta[7], meta[8]
if not (starts and ends and retention) then
  return {19, '', 0, 'INVALID_META_TIME', 0}
end
local times = ' ' .. starts .. ' ' .. ends .. ' ' .. retention
if not find(times, '^ %d+ %d+ %d+$') or find(times, ' 0%d')
  or #starts > 15 or #ends > 15 or #retention > 15 then
  return {19, '', 0, 'INVALID_META_TIME', 0}
end
local starts_at, ends_at, retention_at = tonumber(starts), tonumber(ends), tonumber(retention)
if starts_at > ends_at or now >= retention_at then
  return {19, '', 0, 'INVALID_META_TIME', 0}
end
local window = ARGV[18] == '1'
if recovery and recovery ~= '' then
  if recovery == 'window' then
    window = true
  elseif recovery == 'rebuild' then
    return {17, '', 0, 'REBUILDING', 0}
  else
    return {19, '', 0, 'INVALID_META_RECOVERY', 0}
  end
end

local stock = call('HMGET', stock_key, 'initial', 'available', 'reserved')
local initial, available, reserved = stock[1], stock[2], stock[3]
local stocked = initial and available and reserved
local sound = false
if stocked then
  local counters = ' ' .. initial .. ' ' .. available .. ' ' .. reserved
  sound = find(counters, '^ %d+ %d+ %d+$') and not find(counters, ' 0%d')
    and #initial <= 15 and #available <= 15 and #reserved <= 15
    and available + reserved == tonumber(initial)
end
-- What a refusal before the stock check says is left: nothing that is not known for sure.
local left = sound and available or '0'

if call('EXISTS', reservation_key) == 1 then
  local held = call('HMGET', reservation_key, 'reservation_id', 'request_id', 'user_id', 'quantity',
    'status')
  if not (held[1] and held[2] and held[3] and held[4] and held[5])
    or not find(STATES, ' ' .. held[5] .. ' ', 1, true) then
    return {19, '', 0, 'CORRUPTED_RESERVATION', 0}
  end
  if held[1] ~= reservation_id or held[2] ~= request_id or held[3] ~= user_id
    or held[4] ~= quantity then
    return {18, '', 0, '', 0}
  end
  call('HSET', request_key, request_id,
    '0|' .. reservation_id .. '|' .. left .. '|QUEUED|' .. user_id .. '|' .. quantity)
  call('PEXPIREAT', request_key, retention, 'NX')
  return {0, reservation_id, tonumber(left), held[5], 1}
end

-- The refusal that follows from everything but the marker, which comes first where there is one.
local code, detail
if version ~= meta[4] then
  code = 14
elseif now < starts_at then
  code = 11
elseif now > ends_at then
  code = 12
elseif meta[5] ~= 'ACTIVE' then
  code = 13
elseif not stocked then
  code, detail = 17, 'STOCK_CONFIG_MISSING'
elseif not sound then
  code, detail = 19, 'STOCK_INVARIANT_VIOLATION'
elseif tonumber(available) < tonumber(quantity) then
  code = 15
elseif now + ttl >= retention_at then
  code, detail = 20, 'RESERVATION_TTL_TOO_LONG'
end

local soldout = call('GET', soldout_key)
local marker
if code then
  marker = call('GET', user_key)
else
  local pending_size = call('ZCARD', pending_key)
  local expiry_size = call('ZCARD', expiry_key)
  -- Reads and, if there is none, writes the marker: the first write of an acceptance.
  marker = call('SET', user_key, reservation_id, 'NX', 'GET', 'PXAT', retention)
  if not marker then
    local units = tonumber(quantity)
    local remaining = string.format('%.0f', available - units)
    local at = string.format('%.0f', now)
    local expires = string.format('%.0f', now + ttl)
    call('HSET', reservation_key,
      'reservation_id', reservation_id, 'request_id', request_id, 'message_id', message_id,
      'activity_id', activity_id, 'sku_id', sku_id, 'user_id', user_id,
      'activity_version', version, 'bucket_id', bucket_id, 'quantity', quantity,
      'status', 'RESERVED', 'reserved_at_ms', at, 'expires_at_ms', expires, 'updated_at_ms', at,
      'send_attempts', '0', 'schema_version', ARGV[8], 'traceparent', ARGV[16] or '')
    call('PEXPIREAT', reservation_key, retention)
    call('ZADD', pending_key, now + grace, reservation_id)
    if pending_size == 0 then
      call('PEXPIREAT', pending_key, retention)
    end
    call('ZADD', expiry_key, expires, reservation_id)
    if expiry_size == 0 then
      call('PEXPIREAT', expiry_key, retention)
    end
    call('HSET', request_key, request_id,
      '0|' .. reservation_id .. '|' .. remaining .. '|QUEUED|' .. user_id .. '|' .. quantity)
    call('PEXPIREAT', request_key, retention, 'NX')
    call('HSET', stock_key, 'available', remaining, 'reserved', reserved + units)
    if remaining == '0' and not soldout then
      call('SET', soldout_key, '1', 'PXAT', retention)
    end
    return {0, reservation_id, tonumber(remaining), 'QUEUED', 0}
  end
end

local named = ''
if marker then
  if #marker > 128 or not find(marker, '^[%w_-]+$') then
    return {19, '', 0, 'CORRUPTED_USER_MARKER', 0}
  end
  code, detail, named = 10, nil, marker
end
if detail then
  return {code, '', 0, detail, 0}
end

if window and ARGV[17] == '1' then
  return {21, '', 0, 'RECOVERY_WINDOW', 0}
end
if call('HLEN', request_key) < tonumber(negative_max) then
  call('HSET', request_key, request_id,
    code .. '|' .. named .. '|' .. left .. '||' .. user_id .. '|' .. quantity)
  call('PEXPIREAT', request_key, retention, 'NX')
end
if code == 15 and left == '0' and not soldout then
  call('SET', soldout_key, '1', 'PXAT', retention)
end
return {code, named, tonumber(left), '', 0}
