-- Part 2 of decide, the short way: its states.
--
-- The short way decides what nearly all calls ask: takes, with an idempotency key or without, of token buckets that have
-- no promises and of quotas within the caller's first window. It has the outcome of the general way to the microsecond,
-- and stands before it because a script makes its functions anew in every call: those of the general way take longer to
-- make than a whole call takes here. For the same reason a state is no table but one place in several lists. Whatever
-- else occurs is left to the general way, before anything was charged.
local KEYS, ARGV, call = KEYS, ARGV, redis.call
local now_text = str(now)

-- keep_reply stores what a call that may be repeated replies.
local function keep_reply(out)
  if number == '' then
    return
  end
  for i = 1, #out do
    -- cjson keeps 14 digits.
    if type(out[i]) == 'number' and out[i] >= 1e14 then
      out[i] = str(out[i])
    end
  end
  redis.call('SET', reply_key, number .. ' ' .. cjson.encode(out), 'PX', 10000)
end

-- Rows by number. A bucket is counted in credits, `unit` to a token, a quota in units.
local row_count, row_at = 0, {} -- its values are ARGV[row_at + 1] and following, see limits.lua
local row_bucket, row_tenant, row_size, row_unit, row_cap, row_refill, row_end, row_text = {}, {}, {}, {}, {}, {}, {}, {}

-- short_rows reads the rows and returns where they end, nil where one is not for the short way.
local function short_rows()
  local p = 5
  row_count = tonumber(ARGV[5])
  for r = 1, row_count do
    local bucket = ARGV[p + 1] == '1'
    if (not bucket and ARGV[p + 1] ~= '3') or ARGV[p + 5] == '1' then
      return nil
    end
    local size, a, b = tonumber(ARGV[p + 7]), tonumber(ARGV[p + 11]), tonumber(ARGV[p + 12])
    row_at[r], row_bucket[r], row_tenant[r], row_size[r] = p, bucket, ARGV[p + 2] == '1', size
    if bucket then
      row_refill[r], row_unit[r], row_cap[r] = a, b, size * b
      row_text[r] = ARGV[p + 11] .. ' ' .. ARGV[p + 12]
    else
      if real < a or real >= b then
        return nil
      end
      row_unit[r], row_cap[r], row_end[r] = 1, size, b + offset
      row_text[r] = ARGV[p + 11] .. ' ' .. ARGV[p + 12] .. ' ' .. ARGV[p + 13]
    end
    p = p + 14
  end
  return p
end

-- States by number, in the order in which they were loaded. lows and next remain the text that was stored; of a quota
-- lows is the text between what is counted and next.
local short_count = 0
local short_index = {} -- number by hash x row_count + row
local short_row, short_hash, short_used, short_lows, short_next, short_fresh, short_dirty = {}, {}, {}, {}, {}, {}, {}

-- short_add makes a state of what is stored; false: not for the short way.
local function short_add(r, h, raw)
  local used, lows, next_text, fresh = 0, now_text .. ':0', '0', true
  if row_bucket[r] then
    local at
    if raw then
      local a, b, c, d, e = string.match(raw, '^(%d+) (%d+) (%d+ %d+) (%S+) (%d+)$')
      if c ~= row_text[r] then
        return false
      end
      used, at, lows, next_text = tonumber(a), tonumber(b), d, e
      -- Within the minute of its last write, see short_save.
      fresh = floor(at / 60000000) ~= floor(now / 60000000)
    else
      local born, level = birth(ARGV[row_at[r] + 4], h)
      used, at = max(0, row_size[r] - level) * row_unit[r], born
    end
    if used > 0 and at < now then
      used = now - at >= ceil_div(used, row_refill[r]) and 0 or used - row_refill[r] * (now - at)
    end
    if used == 0 then
      lows, next_text = now_text .. ':0', '0'
    end
  elseif raw then
    local window, c, c2, b, e = string.match(raw, '^(%d+ %d+ %d+) (%d+) (%d+) (%d+) %d+ (%d+)$')
    if window ~= row_text[r] then
      return false
    end
    used, lows, next_text, fresh = tonumber(c), c2 .. ' ' .. b .. ' ' .. str(row_end[r]), e, false
  else
    lows = '0 ' .. str(tonumber(ARGV[row_at[r] + 11]) + offset) .. ' ' .. str(row_end[r])
  end
  local i = short_count + 1
  short_count = i
  short_index[h * row_count + r] = i
  short_row[i], short_hash[i], short_used[i], short_lows[i], short_next[i], short_fresh[i], short_dirty[i] =
    r, h, used, lows, next_text, fresh, false
  return true
end

-- short_load loads the states of the rows from one hash; false: not for the short way.
local function short_load(list, h)
  if #list == 1 then
    local r = list[1]
    return short_index[h * row_count + r] or short_add(r, h, call('HGET', KEYS[h], ARGV[row_at[r] + 3]))
  end
  local fields, wanted = {}, {}
  for k = 1, #list do
    local r = list[k]
    if not short_index[h * row_count + r] then
      wanted[#wanted + 1], fields[#fields + 1] = r, ARGV[row_at[r] + 3]
    end
  end
  if #wanted > 0 then
    local raws = call('HMGET', KEYS[h], unpack(fields))
    for k = 1, #wanted do
      if not short_add(wanted[k], h, raws[k]) then
        return false
      end
    end
  end
  return true
end

-- short_save writes what changed, one write per hash, and keeps a tenant's hash alive as the general way does. It leaves
-- out what would not matter: a bucket that is full within a minute, in whose hash its row was written within this minute,
-- has at least the three minutes of that time left, less one.
local function short_save()
  local i = 1
  local wrote = false
  while i <= short_count do
    -- The states of a tenant's hash come one after the other, as long as all of them are loaded at once.
    local h, values, ttl, keep = short_hash[i], nil, 0, false
    while i <= short_count and short_hash[i] == h do
      if short_dirty[i] then
        local r = short_row[i]
        local text
        if row_bucket[r] then
          text = str(short_used[i]) .. ' ' .. now_text .. ' ' .. row_text[r] .. ' ' .. short_lows[i] .. ' ' .. short_next[i]
        else
          text = row_text[r] .. ' ' .. str(short_used[i]) .. ' ' .. short_lows[i] .. ' ' .. short_next[i]
        end
        values = values or {}
        values[#values + 1] = ARGV[row_at[r] + 3]
        values[#values + 1] = text
        if h > 2 then
          ttl = max(ttl, tonumber(ARGV[row_at[r] + 10]))
          local left = row_bucket[r] and floor(ceil_div(short_used[i], row_refill[r]) / 1000) or 0
          ttl = max(ttl, left + SPREAD_MAX / 1000)
          keep = keep or short_fresh[i] or left > 60000
        end
      end
      i = i + 1
    end
    if values then
      call('HSET', KEYS[h], unpack(values))
      wrote = true
      if keep then
        touch(KEYS[h], str(ttl))
      end
    end
  end
  return wrote
end
