-- Cached responses that several gateways share. ARGV[1] is what to do; times are microseconds since 1970.
--
-- tgc:salt        the salt of all keys
-- tgc:r:KEY       a hash: m VARIANT = "STORED URL OWNER", b VARIANT = the response
-- tgc:u:URL       the keys of a URL (a set);  tgc:o:OWNER  the keys of PROVIDER\nENTITY (a set)
-- tgc:size        KEY = "BYTES RESPONSES OWNER";  tgc:bytes, tgc:count  OWNER = sums, '' = all
-- tgc:used        KEY by its last use;  tgc:until  KEY by the time after which it is of no use
-- tgc:mark:…      a removal: what was requested before it is not stored after it
local do_what, now = ARGV[1], tonumber(ARGV[2])

-- A request takes less than that, so later no response of before a removal arrives.
local MARK_MS = 3600000
-- Keys that one call drops at most, so that the server is not held up.
local DROP_MAX = 256

local function drop(key)
  local size = redis.call('HGET', 'tgc:size', key)
  redis.call('DEL', 'tgc:r:' .. key)
  redis.call('ZREM', 'tgc:used', key)
  redis.call('ZREM', 'tgc:until', key)
  if not size then return 0 end
  local bytes, count, owner = string.match(size, '^(%d+) (%d+) (.*)$')
  redis.call('HDEL', 'tgc:size', key)
  redis.call('SREM', 'tgc:o:' .. owner, key)
  for _, of in ipairs({ owner, '' }) do
    redis.call('HINCRBY', 'tgc:bytes', of, -bytes)
    if redis.call('HINCRBY', 'tgc:count', of, -count) <= 0 then
      redis.call('HDEL', 'tgc:bytes', of)
      redis.call('HDEL', 'tgc:count', of)
    end
  end
  return tonumber(count)
end

local function drop_expired()
  local old = redis.call('ZRANGEBYSCORE', 'tgc:until', '-inf', now, 'LIMIT', 0, DROP_MAX)
  for _, key in ipairs(old) do drop(key) end
end

-- Was it removed since it was requested? A time in the future is from a clock that was set back.
local function is_removed(key, variant, stored, url, owner)
  local provider = string.match(owner, '^[^\n]*')
  local marks = redis.call('MGET', 'tgc:mark:u:' .. url, 'tgc:mark:r:' .. key .. variant,
    'tgc:mark:p:', 'tgc:mark:p:' .. provider, 'tgc:mark:p:' .. owner)
  for _, mark in ipairs(marks) do
    local at = tonumber(mark or 0)
    if at and at >= stored and at <= now then return true end
  end
  return false
end

-- The responses of a key, by their variants.
local function responses(key)
  local found, all = {}, redis.call('HGETALL', 'tgc:r:' .. key)
  for at = 1, #all, 2 do
    local kind, variant = string.sub(all[at], 1, 1), string.sub(all[at], 2)
    found[variant] = found[variant] or {}
    found[variant][kind] = all[at + 1]
  end
  local valid = {}
  for variant, one in pairs(found) do
    local stored, url, owner = string.match(one.m or '', '^(%d+) (%x+) (.*)$')
    if stored and one.b then
      valid[variant] = { stored = tonumber(stored), url = url, owner = owner, body = one.b }
    end
  end
  return valid
end

local function account(key, owner)
  local bytes, count = 0, 0
  for _, one in pairs(responses(key)) do
    bytes, count = bytes + #one.body, count + 1
  end
  local was_bytes, was_count = string.match(redis.call('HGET', 'tgc:size', key) or '', '^(%d+) (%d+) ')
  redis.call('HSET', 'tgc:size', key, string.format('%.0f %.0f ', bytes, count) .. owner)
  for _, of in ipairs({ owner, '' }) do
    redis.call('HINCRBY', 'tgc:bytes', of, string.format('%.0f', bytes - (was_bytes or 0)))
    redis.call('HINCRBY', 'tgc:count', of, string.format('%.0f', count - (was_count or 0)))
  end
  return count
end

if do_what == 'find' then
  local key, reply = ARGV[3], {}
  for variant, one in pairs(responses(key)) do
    if not is_removed(key, variant, one.stored, one.url, one.owner) then
      for _, value in ipairs({ variant, string.format('%.0f', one.stored), one.url, one.owner, one.body }) do
        reply[#reply + 1] = value
      end
    end
  end
  return reply
elseif do_what == 'touch' then
  redis.call('ZADD', 'tgc:used', 'XX', now, ARGV[3])
elseif do_what == 'put' then
  local salt, key, variant, stored, url, owner = ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[7], ARGV[8]
  local body, lasts, bytes_max, variants_max = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
  local known = redis.call('GET', 'tgc:salt')
  if not known then
    redis.call('SET', 'tgc:salt', salt)
  elseif known ~= salt then
    return -1
  end
  local others = responses(key)
  local same = others[variant]
  if is_removed(key, variant, stored, url, owner) or same and same.stored > stored and same.stored <= now then
    return 0
  end
  redis.call('HSET', 'tgc:r:' .. key, 'm' .. variant, ARGV[6] .. ' ' .. url .. ' ' .. owner, 'b' .. variant, body)
  others[variant] = { stored = stored }
  local count, oldest = 0, nil
  for name, one in pairs(others) do
    count = count + 1
    if name ~= variant and (not oldest or one.stored < others[oldest].stored) then oldest = name end
  end
  if count > variants_max and oldest then redis.call('HDEL', 'tgc:r:' .. key, 'm' .. oldest, 'b' .. oldest) end
  account(key, owner)
  redis.call('SADD', 'tgc:o:' .. owner, key)
  local of_url = 'tgc:u:' .. url
  redis.call('SADD', of_url, key)
  for _, name in ipairs({ 'tgc:r:' .. key, of_url }) do
    local longest = math.max(lasts, redis.call('PTTL', name))
    redis.call('PEXPIRE', name, string.format('%.0f', longest))
    if name ~= of_url then redis.call('ZADD', 'tgc:until', now + longest * 1000, key) end
  end
  redis.call('ZADD', 'tgc:used', now, key)
  drop_expired()
  for _ = 1, DROP_MAX do
    if tonumber(redis.call('HGET', 'tgc:bytes', '') or 0) <= bytes_max then break end
    local least = redis.call('ZRANGE', 'tgc:used', 0, 0)[1]
    if not least then break end
    drop(least)
  end
  return 1
elseif do_what == 'remove' then
  local key, variant, at = ARGV[3], ARGV[4], tonumber(ARGV[5])
  local one = responses(key)[variant]
  if one and one.stored <= at then
    redis.call('HDEL', 'tgc:r:' .. key, 'm' .. variant, 'b' .. variant)
    if account(key, one.owner) == 0 then drop(key) end
  end
  redis.call('SET', 'tgc:mark:r:' .. key .. variant, ARGV[5], 'PX', MARK_MS)
  redis.call('PUBLISH', 'tgc:changes', ARGV[#ARGV] .. ' r ' .. key .. ' ' .. variant .. ' ' .. ARGV[5])
elseif do_what == 'invalidate' then
  local url = ARGV[3]
  for _, key in ipairs(redis.call('SMEMBERS', 'tgc:u:' .. url)) do drop(key) end
  redis.call('DEL', 'tgc:u:' .. url)
  redis.call('SET', 'tgc:mark:u:' .. url, ARGV[4], 'PX', MARK_MS)
  redis.call('PUBLISH', 'tgc:changes', ARGV[#ARGV] .. ' u ' .. url .. ' ' .. ARGV[4])
elseif do_what == 'purge' then
  -- A part of it: it is called until nothing is left. ARGV[3] is '' (all), PROVIDER or PROVIDER\nENTITY.
  local what, dropped, visited = ARGV[3], 0, 0
  redis.call('SET', 'tgc:mark:p:' .. what, ARGV[4], 'PX', MARK_MS)
  for _, owner in ipairs(redis.call('HKEYS', 'tgc:count')) do
    local provider = string.match(owner, '^[^\n]*')
    if owner ~= '' and (what == '' or what == owner or what == provider) then
      local keys = redis.call('SRANDMEMBER', 'tgc:o:' .. owner, DROP_MAX)
      for _, key in ipairs(keys) do dropped, visited = dropped + drop(key), visited + 1 end
    end
    if visited >= DROP_MAX then break end
  end
  redis.call('PUBLISH', 'tgc:changes', ARGV[#ARGV] .. ' p ' .. what)
  return { dropped, visited }
elseif do_what == 'usage' then
  drop_expired()
  return { redis.call('HGETALL', 'tgc:count'), redis.call('HGETALL', 'tgc:bytes') }
end
return 0
