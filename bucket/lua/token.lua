-- Prelude 4, token buckets.
--
-- A bucket is one field of a state hash: "used at n p lows next [slot cost]*"
--   used   credits used at that time; one token is p credits, the refill is n credits a microsecond
--   at     the time of the last write
--   n p    the refill that it was written with
--   lows   "time:level,..", the newest first: how far used had fallen before a charge at that time, of those that were
--          not undercut since. What a later charge left behind of an earlier one is the lowest level since then, so no
--          more than that is ever given back: more would be refill that has been used already (docs/adr/0003)
--   next   when the next refused ask is sent back (see spread)
--   slot cost   what is promised to slots that have not come, in credits, by slot
--
-- The row of a bucket has a = n, b = p, c = 1 for oversize debt.

-- decay is what is left of used after dt microseconds. dt is compared before it is multiplied, so nothing overflows.
local function decay(used, n, dt)
  if dt <= 0 or used <= 0 then
    return used
  end
  if dt >= ceil_div(used, n) then
    return 0
  end
  return used - n * dt
end

-- grow is the refill of dt microseconds, at most cap.
local function grow(n, dt, cap)
  if dt >= ceil_div(cap, n) then
    return cap
  end
  return n * dt
end

-- convert turns credits of p0 into credits of p, rounded up by less than two.
local function convert(x, p0, p)
  if x == 0 or p0 == p then
    return x
  end
  local r = x % p0
  return min(TOP, floor(x / p0) * p + math.ceil(r * p / p0) + 1)
end

-- lows_in turns levels of p0 credits a token into such of p, rounded down.
local function lows_in(lows, p0, p)
  if p0 == p then
    return lows
  end
  return (string.gsub(lows, ':(%d+)', function(level)
    local x = tonumber(level)
    return ':' .. str(min(TOP, floor(x / p0) * p + floor(x % p0 * p / p0)))
  end))
end

-- lows_after is the lowest level before a charge later than t, nil where there was none.
local function lows_after(lows, t)
  local low
  for time, level in string.gmatch(lows, '(%d+):(%d+)') do
    if tonumber(time) > t then
      low = tonumber(level)
    end
  end
  return low
end

-- lows_less takes c from the levels later than t.
local function lows_less(lows, t, c)
  return (string.gsub(lows, '(%d+):(%d+)', function(time, level)
    if tonumber(time) > t then
      return time .. ':' .. str(level - c)
    end
  end))
end

-- bound computes, for each promise, the level that may stand before it (bounds), and the level that may stand now (top).
local function token_bound(st)
  local slots, costs, cap, n = st.slots, st.costs, st.cap, st.row.a
  local k = #slots
  if k == 0 then
    st.top = cap
    return
  end
  local h = {}
  local below
  for i = k, 1, -1 do
    local lim = cap - costs[i]
    if below then
      lim = min(lim, below + grow(n, slots[i + 1] - slots[i], cap) - costs[i])
    end
    h[i] = lim
    below = lim
  end
  st.bounds = h
  st.top = min(cap, below + grow(n, slots[1] - now, cap))
end

local function token_load(st, raw)
  local row = st.row
  local n, p = row.a, row.b
  st.cap = row.size * p
  st.slots, st.costs = {}, {}
  if not raw then
    local born, level = birth(row.identity, st.h)
    st.used = decay(max(0, row.size - level) * p, n, now - born)
    st.lows, st.next = str(now) .. ':0', 0
    st.top = st.cap
    return
  end
  local a, b, c, d, lows, f, rest = string.match(raw, '^(%d+) (%d+) (%d+) (%d+) (%S+) (%d+)(.*)$')
  local used, at, n0, p0 = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
  st.next = tonumber(f)
  at = min(at, now)
  -- Since the last write the slower of the two refills counts, in whose credits the fold below runs.
  local pace, unit = n, p
  if n0 / p0 < n / p then
    pace, unit = n0, p0
  else
    used, lows = convert(used, p0, p), lows_in(lows, p0, p)
  end
  local slots, costs = st.slots, st.costs
  if rest ~= '' then
    for s, x in string.gmatch(rest, '(%d+) (%d+)') do
      local slot, cost = tonumber(s), convert(tonumber(x), p0, unit)
      if slot <= now then
        used = decay(used, pace, slot - at)
        at = max(at, slot)
        lows = lows_push(lows, slot, used)
        used = min(TOP, used + cost)
      else
        slots[#slots + 1] = slot
        costs[#costs + 1] = convert(cost, unit, p)
      end
    end
  end
  used, lows = convert(decay(used, pace, now - at), unit, p), lows_in(lows, unit, p)
  if used == 0 then
    lows = str(now) .. ':0'
    if #slots == 0 then
      st.next = 0
    end
  end
  st.used, st.lows = used, lows
  token_bound(st)
end

-- first is the first instant from `from` on at which cost fits and every later promise still does; -1: never.
-- Between two promises the room for a cost never grows once it has fitted the capacity, so one try each is enough.
local function token_first(st, from, cost)
  local row, cap, n = st.row, st.cap, st.row.a
  local c = cost * row.b
  local slots = st.slots
  local k = #slots
  if c > cap then
    if row.c ~= 1 then
      return -1
    end
  elseif k == 0 or from == now then
    if st.used + c <= st.top then
      return from
    end
    if k == 0 then
      return max(from, now + ceil_div(st.used + c - cap, n))
    end
  end
  local u, a = st.used, now
  for i = 0, k do
    local e = slots[i + 1]
    if not e or e > from then
      local s = max(a, from)
      local us = decay(u, n, s - a)
      local t
      if c > cap then
        if not e then
          t = s + ceil_div(us, n)
        end
      else
        t = s
        if us + c > cap then
          t = s + ceil_div(us + c - cap, n)
        end
        if e and (t >= e or decay(us, n, t - s) + c > st.bounds[i + 1] + grow(n, e - t, cap)) then
          t = nil
        end
      end
      if t then
        return t
      end
    end
    if e then
      u = decay(u, n, e - a) + st.costs[i + 1]
      a = e
    end
  end
  return -1
end

local function token_take(st, at, cost)
  local c = cost * st.row.b
  if at <= now then
    st.lows = lows_push(st.lows, now, st.used)
    st.used = min(TOP, st.used + c)
    return
  end
  local slots = st.slots
  local i = #slots + 1
  while i > 1 and slots[i - 1] > at do
    i = i - 1
  end
  table.insert(slots, i, at)
  table.insert(st.costs, i, c)
  token_bound(st)
end

-- give returns cost of what was charged at that slot: from the promise where it has not come, otherwise as much of it as
-- was never undercut since.
local function token_give(st, at, cost)
  local c = cost * st.row.b
  if at <= now then
    local low = lows_after(st.lows, at)
    if low then
      st.lows = lows_less(st.lows, at, min(c, low))
      c = min(c, low)
    end
    st.used = max(0, st.used - c)
    return
  end
  for i = 1, #st.slots do
    if st.slots[i] == at and st.costs[i] >= c then
      st.costs[i] = st.costs[i] - c
      if st.costs[i] == 0 then
        table.remove(st.slots, i)
        table.remove(st.costs, i)
      end
      token_bound(st)
      return
    end
  end
end

local function token_view(st)
  local row = st.row
  local left = max(0, min(row.size, floor((st.top - st.used) / row.b)))
  local u, a = st.used, now
  for i = 1, #st.slots do
    u = decay(u, row.a, st.slots[i] - a) + st.costs[i]
    a = st.slots[i]
  end
  return left, a - now + ceil_div(u, row.a)
end

local function token_save(st)
  local row = st.row
  local raw = string.format('%.0f %.0f %.0f %.0f %s %.0f', st.used, now, row.a, row.b, st.lows, st.next)
  for i = 1, #st.slots do
    raw = raw .. string.format(' %.0f %.0f', st.slots[i], st.costs[i])
  end
  return raw
end
