-- The token bucket of the document, word for word, to compare with. Tollgate does not use it.
local key = KEYS[1]
local tokens = tonumber(ARGV[1])
local now = tonumber(ARGV[2])
local interval = 60  -- 1 minute
local rate = tonumber(ARGV[3])
local burst = tonumber(ARGV[4])

-- Get current bucket state
local bucket = redis.call('HMGET', key, 'tokens', 'last_refill')
local current_tokens = tonumber(bucket[1]) or burst
local last_refill = tonumber(bucket[2]) or now

-- Calculate tokens to add based on time elapsed
local elapsed = now - last_refill
local tokens_to_add = math.floor(elapsed * rate / interval)

-- Refill tokens (up to burst size)
current_tokens = math.min(burst, current_tokens + tokens_to_add)

-- Check if enough tokens available
if current_tokens >= tokens then
    -- Consume tokens
    current_tokens = current_tokens - tokens
    redis.call('HMSET', key, 'tokens', current_tokens, 'last_refill', now)
    redis.call('EXPIRE', key, interval * 2)
    return 1
else
    -- Update state anyway (tokens added but not enough)
    redis.call('HMSET', key, 'tokens', current_tokens, 'last_refill', now)
    redis.call('EXPIRE', key, interval * 2)
    return 0
end
