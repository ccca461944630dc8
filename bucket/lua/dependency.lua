-- Prelude 2, the dependency: exact numbers, its own clock, its births, and the list of what will be written.
--
-- KEYS[1] is always the dependency's meta hash:
--   v          version of the policy in force; only the install script writes it
--   clk        "<offset_us> <seen_us>": the dependency's time is TIME + offset, and never before seen
--   last       the last slot given, where some token bucket counts for the whole dependency
--   b:<identity>  "<born_us> <level>": when a token bucket was installed, and with how many tokens
--
-- All stored times are the dependency's own, so a TIME that steps back shifts nothing: the offset grows instead.
-- Calendar windows alone are kept in TIME.
local floor, max, min = math.floor, math.max, math.min

-- TOP is 2^53: up to it a Lua number is an exact integer. Nothing is stored beyond it.
local TOP = 9007199254740992

-- SPREAD_MAX is how far beyond the instant at which an ask fits the losers of a crowd are spread.
local SPREAD_MAX = 60000000

-- str writes an exact integer; tostring and .. would keep 14 digits only.
local function str(x)
  return string.format('%.0f', x)
end

-- ceil_div is exact for 0 <= a <= TOP although a / b is rounded.
local function ceil_div(a, b)
  local q = floor(a / b)
  if q * b < a then
    return q + 1
  end
  return q
end

local meta = KEYS[1]
local real = redis_time()
local now, offset, clock_moved

-- open reads version and clock of the dependency; it returns the version, or nil where there is no policy.
local function open()
  local m = redis.call('HMGET', meta, 'v', 'clk')
  local off, seen = 0, 0
  if m[2] then
    local a, b = string.match(m[2], '^(%d+) (%d+)$')
    off, seen = tonumber(a), tonumber(b)
  end
  now = real + off
  if now < seen then
    off = off + (seen - now)
    now = seen
  end
  offset = off
  return m[1] and tonumber(m[1])
end

local births = {}
local whole_since

-- birth returns when the bucket of that identity was installed and with how many tokens, for one whose state in KEYS[h] is
-- not there. Without a record, which is a meta hash that lost a field, it is born empty now. One of the whole dependency is
-- born empty no earlier than its hash, which says since when it is whole; a hash without that mark was lost, and is whole
-- from now on. A tenant's hash may have expired and tells nothing.
local function birth(identity, h)
  local b = births[identity]
  if not b then
    local raw = redis.call('HGET', meta, 'b:' .. identity)
    b = {now, 0}
    if raw then
      local at, level = string.match(raw, '^(%d+) (%d+)$')
      b = {tonumber(at), tonumber(level)}
    end
    births[identity] = b
  end
  local at, tokens = b[1], b[2]
  if h == 2 then
    if not whole_since then
      whole_since = tonumber(redis.call('HGET', KEYS[2], 'installed') or '')
      if not whole_since then
        whole_since = now
        redis.pcall('HSET', KEYS[2], 'installed', str(now)) -- where memory is full, the next call that may write does
      end
    end
    if whole_since >= at then
      at, tokens = whole_since, 0
    end
  end
  return min(at, now), tokens
end

-- touch lets the key live for at least ms more, and never shortens its life. GT does nothing to a key that has no end.
local function touch(key, ms)
  if redis.call('PEXPIRE', key, ms, 'GT') == 0 then
    redis.call('PEXPIRE', key, ms, 'NX')
  end
end

-- lows_push notes the level of a token bucket before a charge (token.lua). Levels that it undercuts go, so they rise
-- towards the newest. At most eight are kept: then the two oldest become one, with the later time and the lower level,
-- which gives back less, never more.
local function lows_push(lows, t, level)
  local text = str(t)
  while lows ~= '' do
    local time, low, rest = string.match(lows, '^(%d+):(%d+),?(.*)$')
    low = tonumber(low)
    if low <= level and time == text then
      return lows
    end
    if low < level then
      break
    end
    lows = rest
  end
  if lows == '' then
    return text .. ':' .. str(level)
  end
  lows = text .. ':' .. str(level) .. ',' .. lows
  -- Nine take at least 170 characters.
  if #lows >= 170 then
    local _, commas = string.gsub(lows, ',', '')
    if commas >= 8 then
      lows = string.gsub(lows, ',(%d+):%d+,%d+:(%d+)$', ',%1:%2')
    end
  end
  return lows
end
