-- Compares and replaces the rows of one provider: the duties of RowStore, and nothing else.
-- KEYS: rows. The notes of those who wait for a row are beside it, under the same name and ":w".
local at = 0
local function arg()
  at = at + 1
  return ARGV[at]
end
local function key() return KEYS[tonumber(arg())] end
local function times() return tonumber(arg()) end
local function netstring(text) return #text .. ':' .. text end

local info = redis.call('INFO', 'replication')
if not string.find(info, 'role:master', 1, true) then
  return redis.error_reply('READONLY this server is a replica')
end
local is_epoch = string.sub(string.match(info, 'master_replid:(%x+)'), 1, 16)
-- Those that WAIT counts. connected_slaves also has replicas that are still synchronising.
local _, replicas = string.gsub(info, 'slave%d+:[^\r\n]*state=online', '')
local time = redis.call('TIME')
-- Below 2^53: exact.
local machine = tonumber(time[1]) * 1000000 + tonumber(time[2])
local now = machine
-- Tests advance it.
now = now + tonumber(arg())

local owner, epoch, from, to, channel, has_scope = arg(), arg(), arg(), arg(), arg(), arg()
local agrees = epoch == '' or epoch == is_epoch
if from ~= '' then
  agrees = agrees and tonumber(from) <= now and now <= tonumber(to)
end

-- A server that has evicted keys since may have evicted rows: this provider counts as wiped. Noted first: without
-- memory nothing at all happens.
local prefix = string.sub(channel, 1, -5)
local evicted = string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)') or '0'
local noted = redis.call('GET', prefix .. 'evicted') or '0'
if evicted ~= noted then
  redis.call('SET', prefix .. 'evicted', evicted)
  if evicted ~= '0' then redis.call('DEL', prefix .. 'p') end
end

local named = {}
for _ = 1, times() do
  local row, version = key(), arg()
  named[#named + 1] = row
  if redis.call('GETRANGE', row, 0, 19) ~= version then agrees = false end
end
for _ = 1, times() do named[#named + 1] = key() end

for _ = 1, times() do
  local notes, lasts, bytes = key() .. ':w', tonumber(arg()), arg()
  redis.call('HSET', notes, owner, string.format('%016.0f', now + lasts) .. bytes)
  local keep = math.ceil(lasts / 1000)
  if redis.call('PTTL', notes) < keep then redis.call('PEXPIRE', notes, keep) end
end

local function waiting(row)
  local notes = redis.call('HGETALL', row .. ':w')
  local found = {}
  for i = 1, #notes, 2 do
    if tonumber(string.sub(notes[i + 1], 1, 16)) > now then
      found[#found + 1] = notes[i]
      found[#found + 1] = string.sub(notes[i + 1], 17)
    end
  end
  return found
end

local stops = {}
for _ = 1, times() do stops[#stops + 1] = key() .. ':w' end

local replaced = times()
local is_replaced = agrees and replaced > 0
if is_replaced then
  local rows, notes, wakes = '', '', has_scope == '1'
  for _, row in ipairs(stops) do redis.call('HDEL', row, owner) end
  for _ = 1, replaced do
    local row, keep, value = key(), arg(), arg()
    if keep == '' then
      redis.call('SET', row, value)
    else
      redis.call('SET', row, value, 'PX', keep)
    end
    rows = rows .. netstring(row) .. netstring(value)
    local found = waiting(row)
    notes = notes .. netstring(tostring(#found / 2))
    for i = 1, #found, 2 do
      wakes = wakes or found[i] ~= owner
      notes = notes .. netstring(found[i]) .. netstring(found[i + 1])
    end
  end
  if wakes then
    redis.call('PUBLISH', channel, netstring(owner) .. netstring(tostring(replaced)) .. rows .. notes)
  end
end

local found, notes = {}, {}
for i, row in ipairs(named) do
  if not is_replaced then found[i] = redis.call('GET', row) end
  notes[i] = waiting(row)
end
return { string.format('%.0f', now), is_epoch, replicas, is_replaced and 1 or 0, found, notes }
