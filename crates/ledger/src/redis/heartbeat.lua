-- Renews the registration of an owner, and says who is registered.
-- ARGV: owner, its process, lease in ms, ms after which a lapsed registration is deleted
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local registered = redis.call('HGET', KEYS[1], ARGV[1])
if registered and string.match(registered, '^[^ ]+') ~= ARGV[2] then
  return { 0, '', {} }
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. string.format('%.0f', now + tonumber(ARGV[3])))
local alive = {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local expires = tonumber(string.match(all[i + 1], '[^ ]+$'))
  if expires > now then
    alive[#alive + 1] = all[i]
  elseif expires + tonumber(ARGV[4]) < now then
    redis.call('HDEL', KEYS[1], all[i])
  end
end
return { 1, redis.call('INFO', 'memory'), alive }
