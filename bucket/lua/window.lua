-- Prelude 5, windows: calendar quotas and sliding counters.

-- A quota is one field of a state hash: "s e e2 c c2 b d next"
--   s e e2   in TIME: the window [s, e) and the one after it, [e, e2)
--   c c2     what is charged in each
--   b d      the same window in the dependency's time: what is charged from b on counts in it, and it ends at d
-- The row of a quota has a, b, c, d: three adjacent windows [a, b), [b, c), [c, d) around the caller's idea of TIME.

-- quota_load returns false where TIME lies outside the caller's first two windows.
local function quota_load(st, raw)
  local row = st.row
  if real < row.a or real >= row.c then
    return false
  end
  st.s, st.e, st.e2 = row.a, row.b, row.c
  if real >= row.b then
    st.s, st.e, st.e2 = row.b, row.c, row.d
  end
  st.c, st.c2, st.next = 0, 0, 0
  st.b, st.d = st.s + offset, st.e + offset
  if not raw then
    return true
  end
  local f = {}
  for x in string.gmatch(raw, '%d+') do
    f[#f + 1] = tonumber(x)
  end
  local s, e, e2, c, c2, b, d = f[1], f[2], f[3], f[4], f[5], f[6], f[7]
  if s > real and now < d then
    -- TIME stepped back: the stored window stays in force until it would have ended.
    st.s, st.e, st.e2, st.b, st.d = s, e, e2, b, d
    st.c, st.c2, st.next = c, c2, f[8]
  elseif s <= real and real < e then
    -- Where zone, start or period changed, a window that still overlaps now hands its count on.
    st.c, st.c2, st.next, st.b = c, c2, f[8], b
  else
    st.b = max(st.b, d)
    if (s > real and now < d + e2 - e) or (s <= real and real < e2) then
      st.c = c2
    end
  end
  return true
end

local function quota_first(st, from, cost)
  local size = st.row.size
  if cost > size then
    return -1
  end
  local at = from
  if at < st.d then
    if st.c + cost <= size then
      return at
    end
    at = st.d
  end
  local d2 = st.d + st.e2 - st.e
  if at < d2 and st.c2 + cost > size then
    return d2
  end
  return at
end

local function quota_take(st, at, cost)
  if at < st.d then
    st.c = st.c + cost
  else
    st.c2 = st.c2 + cost
  end
end

-- give returns cost only in the window that was charged.
local function quota_give(st, at, cost)
  if at >= st.d then
    st.c2 = max(0, st.c2 - cost)
  elseif at >= st.b then
    st.c = max(0, st.c - cost)
  end
end

local function quota_view(st)
  return max(0, st.row.size - st.c), max(0, st.d - now)
end

local function quota_save(st)
  return string.format('%.0f %.0f %.0f %.0f %.0f %.0f %.0f %.0f',
    st.s, st.e, st.e2, st.c, st.c2, st.b, st.d, st.next)
end

-- A sliding counter is one field of a state hash: "w k prev next [j count]*"
--   w      the window in milliseconds that it was written with; all its arithmetic is in milliseconds
--   k prev window k-1 holds prev
--   j count  window j >= k holds count; later ones than k are promised to slots
-- The row has a = w. In memory counts[i] is that of window k + i - 1, from 1 to len, so that the indices stay small.
local function sliding_count(st, j)
  local i = j - st.k
  if i < 0 then
    return i == -1 and st.prev or 0
  end
  return st.counts[i + 1] or 0
end

local function sliding_add(st, j, cost)
  local i = j - st.k + 1
  for x = st.len + 1, i do
    st.counts[x] = 0
  end
  st.len = max(st.len, i)
  st.counts[i] = max(0, st.counts[i] + cost)
end

local function sliding_load(st, raw)
  local w = st.row.a
  local ms = floor(now / 1000)
  local k = floor(ms / w)
  st.k, st.prev, st.next, st.counts, st.len = k, 0, 0, {}, 0
  if not raw then
    return
  end
  local a, b, c, d, rest = string.match(raw, '^(%d+) (%d+) (%d+) (%d+)(.*)$')
  local w0, k0, prev0 = tonumber(a), tonumber(b), tonumber(c)
  st.next = tonumber(d)
  if w0 ~= w then
    -- Another window: everything that may still count does so in the present one.
    local sum = ms < (k0 + 1) * w0 and prev0 or 0
    for j, x in string.gmatch(rest, '(%d+) (%d+)') do
      if ms < (tonumber(j) + 2) * w0 then
        sum = sum + tonumber(x)
      end
    end
    sliding_add(st, k, sum)
    return
  end
  if k0 >= k then
    st.prev = prev0
  end
  for js, x in string.gmatch(rest, '(%d+) (%d+)') do
    local j, count = tonumber(js), tonumber(x)
    if j == k - 1 then
      st.prev = count
    elseif j >= k then
      sliding_add(st, j, count)
    end
  end
  if st.prev == 0 and st.len == 0 then
    st.next = 0
  end
end

-- first: in window j, with A charged in the window before and B in it, cost fits from the first elapsed e on for which
-- A x (w - e) <= (size - B - cost) x w. What is promised to the following window is held to the same limit as a whole.
local function sliding_first(st, from, cost)
  local w, size = st.row.a, st.row.size
  if cost > size then
    return -1
  end
  local j = floor(floor(from / 1000) / w)
  while true do
    local a, b, after = sliding_count(st, j - 1), sliding_count(st, j), sliding_count(st, j + 1)
    local room = size - b - cost
    if room >= 0 and (after == 0 or room >= after) then
      local e = 0
      if a > 0 then
        e = max(0, w - floor(room * w / a))
      end
      if e < w then
        return max(from, (j * w + e) * 1000)
      end
    end
    j = j + 1
  end
end

local function sliding_take(st, at, cost)
  sliding_add(st, floor(floor(at / 1000) / st.row.a), cost)
end

local function sliding_give(st, at, cost)
  local j = floor(floor(at / 1000) / st.row.a)
  if j == st.k - 1 then
    st.prev = max(0, st.prev - cost)
  elseif j >= st.k and j < st.k + st.len then
    sliding_add(st, j, -cost)
  end
end

local function sliding_view(st)
  local w, size = st.row.a, st.row.size
  local e = floor(now / 1000) - st.k * w
  local cur, after = st.counts[1] or 0, st.counts[2] or 0
  local left = floor((size * w - st.prev * (w - e) - cur * w) / w)
  if after > 0 then
    left = min(left, size - cur - after)
  end
  local last = st.prev > 0 and st.k - 1 or nil
  for i = 1, st.len do
    if st.counts[i] > 0 then
      last = st.k + i - 1
    end
  end
  return max(0, left), last and (last + 2) * w * 1000 - now or 0
end

local function sliding_save(st)
  local raw = string.format('%.0f %.0f %.0f %.0f', st.row.a, st.k, st.prev, st.next)
  for i = 1, st.len do
    if st.counts[i] > 0 then
      raw = raw .. string.format(' %.0f %.0f', st.k + i - 1, st.counts[i])
    end
  end
  return raw
end
