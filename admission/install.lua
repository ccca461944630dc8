-- install makes a document the current version of a dependency's policy. It is idempotent: the same document again
-- changes nothing, so any number of processes may install the same file.
--
-- KEYS[1]  sluice:{d}:policy  hash: "<version>" = document, "at:<version>" = TIME in us when it was installed,
--                             "of:<version>" = the version that it brought back, for one that was restored,
--                             "max" = the highest version given, "sha" = fingerprint of that version's document
-- KEYS[2]  sluice:{d}:meta    hash: "v" = current version, "b:<identity>" = "<born_us> <level>", "clk" (read only)
-- KEYS[3]  sluice:{d}:s       hash of the dependency's limits: "installed" is since when it is whole, 1 from the first
-- ARGV[1]  the document
-- ARGV[2]  its fingerprint
-- ARGV[3]  the last version that this process decided by, 0 where it never did
-- ARGV[4]  0; or, to bring back what Redis lost, the version in whose stead the document stands
-- ARGV[5]  how many versions to keep
-- ARGV[6..]  identity and initial level in tokens of each token bucket, in pairs
-- returns  {version, 1 if anything was installed else 0}; {version, -1} where a version is in force that is no older than
--          the one to bring back
--
-- A version number never stands for two documents, because a process that holds an old one must not be taken for one
-- that holds the current one. Both hashes know the highest number, and so does a process that decided; a new number is
-- beyond all of them and at least TIME in microseconds, so that it is also beyond every number that was given before all
-- that knew of it was lost: no server makes a change a microsecond. It is exact in a Lua number, and in JSON, until the
-- year 2255. What this cannot know is a Redis that is new and whose clock is behind: there a number may lie below one that
-- some process still holds, which brings back its own then.

local policy, meta = KEYS[1], KEYS[2]
local document, sha, known, of, keep = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])

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

if of > 0 then
  local there = str(current > 0 and current or highest) -- meta may be lost alone
  local have = redis.call('HMGET', policy, there, 'of:' .. there)
  if have[1] and tonumber(have[2] or there) >= of then
    redis.call('HSET', meta, 'v', there)
    return {tonumber(there), -1}
  end
end

-- A bucket that is new in a dependency that was there before begins empty: who renames a limit, or loses meta, gets no
-- second capacity.
local existed = known > 0 or top > 0 or redis.call('EXISTS', policy, meta) > 0

local same = highest > 0 and highest == top and head[2] == sha and redis.call('HGET', policy, str(highest)) == document

local version = highest
if not same then
  version = math.max(top + 1, known + 1, real)
end

local wanted = {}
for i = 6, #ARGV, 2 do
  local field = 'b:' .. ARGV[i]
  wanted[field] = true
  local birth = redis.call('HGET', meta, field)
  if not birth or not string.match(birth, '^%d+ %d+$') then
    redis.call('HSET', meta, field, str(born) .. ' ' .. (existed and '0' or ARGV[i + 1]))
    -- What a former limit of that identity left behind has filled up since.
    for _, f in ipairs(existed and redis.call('HKEYS', KEYS[3]) or {}) do
      if f == ARGV[i] or string.sub(f, 1, #ARGV[i] + 1) == ARGV[i] .. '/' then
        redis.call('HDEL', KEYS[3], f)
      end
    end
  end
end
if of > 0 then
  redis.call('HSET', policy, 'of:' .. str(version), str(of))
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
  local v = str(versions[i])
  redis.call('HDEL', policy, v, 'at:' .. v, 'of:' .. v)
end
return {version, 1}
