-- Token buckets of guards, decided as one: all asks or none.
--
-- KEYS: the buckets. ARGV: for each bucket how many tokens it gains (limit) in how many microseconds
-- (period), its burst and the milliseconds after which it is full; then for each ask the number of its
-- bucket, its cost (0 asks whether a token is left, below 0 puts tokens back) and whether it is enforced.
-- limit has 32 bits and no divisor in common with period, which is at most 2^52.
--
-- A bucket is a hash: tokens, whole; last_refill, seconds since 1970, when it had exactly those; pace,
-- its limit, period and burst, and by how many parts (1/limit) of a microsecond last_refill is later.
-- So no refill is ever rounded. A decision that is denied, or takes nothing, writes nothing, except to repair
-- a bucket that cannot be right.
--
-- Reply: whether it was denied; for each bucket its tokens before and after, each as whole tokens and
-- parts (1/period) of one; for each ask 1 if it is not enforced and lacked tokens. Whole numbers below 2^53.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local TWO53 = 9007199254740992

-- a * b / m for a < m <= 2^52 and b < 2^52: the whole part and the rest, exact.
local function divide(a, b, m)
  local product = a * b
  if product < TWO53 then
    local rest = math.fmod(product, m)
    return (product - rest) / m, rest
  end
  local whole, rest, bit = 0, 0, 2251799813685248
  while bit >= 1 do
    whole, rest = whole * 2, rest * 2
    if rest >= m then whole, rest = whole + 1, rest - m end
    if b >= bit then
      b, rest = b - bit, rest + a
      if rest >= m then whole, rest = whole + 1, rest - m end
    end
    bit = bit / 2
  end
  return whole, rest
end

-- The bucket now: whole tokens, parts of one, the time up to which refill is counted, and whether it was repaired.
local function refilled(tokens, at, part, limit, period, burst)
  local from = at
  if part > 0 then from = at + 1 end
  local upto = now
  if now < from then
    -- The clock was set back: nothing comes in meanwhile, but no bucket stays empty for long.
    if from - now > math.max(60000000, period) then return 0, 0, now, true end
    upto = from
  end
  local rest = math.fmod(upto - at, period)
  tokens = tokens + (upto - at - rest) / period * limit
  if tokens >= burst then return burst, 0, upto end
  local more, parts = divide(rest, limit, period)
  parts = parts - part
  if parts < 0 then
    -- Several tokens may come in one microsecond.
    local over = math.fmod(-parts, period)
    more = more - (-parts - over) / period
    parts = -over
    if parts < 0 then more, parts = more - 1, parts + period end
  end
  tokens = tokens + more
  if tokens >= burst then return burst, 0, upto end
  return tokens, parts, upto
end

local function micros(text)
  local seconds, fraction = string.match(text or '', '^(%d+)%.?(%d*)$')
  if not seconds or #seconds > 10 then return nil end
  return seconds * 1000000 + tonumber(string.sub(fraction .. '000000', 1, 6))
end

local function read(bucket)
  local held = redis.pcall('HMGET', bucket.key, 'tokens', 'last_refill', 'pace')
  if held.err then
    -- It is no hash: somebody else wrote it.
    redis.call('DEL', bucket.key)
    return 0, 0, now, true
  end
  if not held[1] and not held[2] then return bucket.burst, 0, now end
  local tokens, at = tonumber(held[1]), micros(held[2])
  if not tokens or not at or not (tokens >= 0) then return 0, 0, now, true end
  tokens = math.min(math.floor(tokens), 4294967295)
  local limit, period, burst, part = string.match(held[3] or '', '^(%d+) (%d+) (%d+) (%d+)$')
  limit, period, burst, part = tonumber(limit), tonumber(period), tonumber(burst), tonumber(part)
  if part and (limit < 1 or limit > 4294967295 or period < 1 or period > 4503599627370496) then part = nil end
  if not part or limit == bucket.limit and period == bucket.period then
    return refilled(tokens, at, part or 0, bucket.limit, bucket.period, bucket.burst)
  end
  -- Its limits were others so far: it has as many tokens as before, at most the new burst.
  local parts, upto, repaired
  tokens, parts, upto, repaired = refilled(tokens, at, part, limit, period, burst)
  if tokens >= bucket.burst then return bucket.burst, 0, upto, repaired end
  parts = divide(parts, bucket.period, period)
  return tokens, parts, upto, repaired
end

local function write(bucket)
  local limit = bucket.limit
  local up = bucket.parts + limit - 1
  local back = (up - math.fmod(up, limit)) / limit
  local at = bucket.upto - back
  local fraction = math.fmod(at, 1000000)
  redis.call('HSET', bucket.key,
    'tokens', string.format('%.0f', bucket.tokens),
    'last_refill', string.format('%.0f.%06.0f', (at - fraction) / 1000000, fraction),
    'pace', string.format('%.0f %.0f %.0f %.0f', limit, bucket.period, bucket.burst, back * limit - bucket.parts))
  redis.call('PEXPIRE', bucket.key, bucket.expires)
end

local buckets = {}
for number, key in ipairs(KEYS) do
  local at = (number - 1) * 4
  local bucket = {
    key = key,
    limit = tonumber(ARGV[at + 1]),
    period = tonumber(ARGV[at + 2]),
    burst = tonumber(ARGV[at + 3]),
    expires = ARGV[at + 4],
    wanted = 0,
  }
  bucket.tokens, bucket.parts, bucket.upto, bucket.changed = read(bucket)
  bucket.tokens_before, bucket.parts_before = bucket.tokens, bucket.parts
  buckets[number] = bucket
end

local asks = {}
for at = #KEYS * 4 + 1, #ARGV - 2, 3 do
  asks[#asks + 1] = {
    bucket = buckets[tonumber(ARGV[at])],
    cost = tonumber(ARGV[at + 1]),
    enforced = ARGV[at + 2] == '1',
  }
end

local function take(bucket, cost)
  bucket.tokens = bucket.tokens - cost
  bucket.changed = true
end

local denied = false
for _, ask in ipairs(asks) do
  local bucket = ask.bucket
  if ask.enforced and ask.cost >= 0 then
    bucket.wanted = bucket.wanted + ask.cost
    if bucket.tokens_before < math.max(bucket.wanted, 1) then denied = true end
  end
end
local lacking = {}
for number, ask in ipairs(asks) do
  lacking[number] = 0
  if ask.enforced and ask.cost > 0 and not denied then take(ask.bucket, ask.cost) end
end
for number, ask in ipairs(asks) do
  local bucket = ask.bucket
  if not denied and ask.enforced and ask.cost < 0 and bucket.tokens < bucket.burst then
    take(bucket, ask.cost)
    if bucket.tokens >= bucket.burst then bucket.tokens, bucket.parts = bucket.burst, 0 end
  end
end
for number, ask in ipairs(asks) do
  local bucket = ask.bucket
  if not ask.enforced and not denied then
    if bucket.tokens < ask.cost then
      lacking[number] = 1
    elseif ask.cost > 0 then
      take(bucket, ask.cost)
    elseif ask.cost < 0 and bucket.tokens < bucket.burst then
      take(bucket, ask.cost)
      if bucket.tokens >= bucket.burst then bucket.tokens, bucket.parts = bucket.burst, 0 end
    end
  end
end

local reply = { denied and 1 or 0 }
for _, bucket in ipairs(buckets) do
  if bucket.changed then write(bucket) end
  for _, number in ipairs({ bucket.tokens_before, bucket.parts_before, bucket.tokens, bucket.parts }) do
    reply[#reply + 1] = number
  end
end
for _, number in ipairs(lacking) do reply[#reply + 1] = number end
return reply
