-- install makes a document the current version of a dependency's policy. It is idempotent: the same document again
-- changes nothing, so any number of processes may install the same file.
--
-- KEYS[1]  sluice:{d}:policy  hash: "<version>" = document, "at:<version>" = TIME in us when it was installed,
--                             "max" = the highest version given, "sha" = fingerprint of that version's document
-- KEYS[2]  sluice:{d}:meta    hash: "v" = current version, "b:<identity>" = "<born_us> <level>", "clk" (read only)
-- KEYS[3]  sluice:{d}:s       hash of the dependency's limits: "installed" is since when it is whole, 1 from the first
-- ARGV[1]  the document
-- ARGV[2]  its fingerprint
-- ARGV[3]  1 where this process has decided on the dependency before and finds it gone, else 0
-- ARGV[4]  how many versions to keep
-- ARGV[5..]  identity and initial level in tokens of each token bucket, in pairs
-- returns  {version, 1 if anything was installed else 0}
--
-- A version number never stands for two documents, because a process that holds an old one must not be taken for one
-- that holds the current one. Both hashes know the highest number, and the higher counts, so that the loss of either
-- is survived. With both gone (the first install ever looks the same as an emptied Redis, and some process may still
-- hold a version from before) the number is TIME in microseconds: beyond every number that began at an earlier time
-- and went up by one for each change, since no server makes a change a microsecond. It is exact in a Lua number, and
-- in JSON, until the year 2255.

local policy, meta = KEYS[1], KEYS[2]
local document, sha, lost, keep = ARGV[1], ARGV[2], ARGV[3] == '1', tonumber(ARGV[4])

-- tostring and .. keep 14 digits only.
local function str(x)
  return string.format('%.0f', x)
end

local time = redis.call('TIME')
local real = time[1] * 1000000 + time[2]

-- The dependency's own time, by which buckets are born: never before what was seen. Only decisions move it.
local born = real
local clk = redis.call('HGET', meta, 'clk')
if clk then
  local offset, seen = string.match(clk, '^(%d+) (%d+)$')
  if offset then
    born = math.max(real + tonumber(offset), tonumber(seen))
  end
end

local current = tonumber(redis.call('HGET', meta, 'v') or '0') or 0
local head = redis.call('HMGET', policy, 'max', 'sha')
local highest = tonumber(head[1] or '0') or 0
local top = math.max(current, highest)

-- A bucket that is new in a dependency that was there before begins empty: who renames a limit, or loses meta, gets no
-- second capacity.
local existed = lost or top > 0 or redis.call('EXISTS', policy, meta) > 0

local same = highest > 0 and highest == top and head[2] == sha and redis.call('HGET', policy, str(highest)) == document

local version
if same then
  version = highest
elseif top > 0 then
  version = top + 1
else
  version = real
end

local wanted = {}
for i = 5, #ARGV, 2 do
  local field = 'b:' .. ARGV[i]
  wanted[field] = true
  local birth = redis.call('HGET', meta, field)
  if not birth or not string.match(birth, '^%d+ %d+$') then
    redis.call('HSET', meta, field, str(born) .. ' ' .. (existed and '0' or ARGV[i + 1]))
  end
end
if same and current == version then
  return {version, 0}
end

for _, field in ipairs(redis.call('HKEYS', meta)) do
  if string.sub(field, 1, 2) == 'b:' and not wanted[field] then
    redis.call('HDEL', meta, field)
  end
end
redis.call('HSET', policy, str(version), document, 'max', str(version), 'sha', sha)
redis.call('HSETNX', policy, 'at:' .. str(version), str(real))
redis.call('HSET', meta, 'v', str(version))
redis.call('HSETNX', KEYS[3], 'installed', existed and str(born) or '1')

local versions = {}
for _, field in ipairs(redis.call('HKEYS', policy)) do
  if string.match(field, '^%d+$') then
    versions[#versions + 1] = tonumber(field)
  end
end
table.sort(versions)
for i = 1, #versions - keep do
  redis.call('HDEL', policy, str(versions[i]), 'at:' .. str(versions[i]))
end
return {version, 1}
