-- Part 5 of decide: asking. What an ask takes, or why it is refused and when it would fit.
local out = {'ok', str(real), str(now)}
local n = 3
local writes = {} -- commands besides the states
local lasts = {} -- by hash index, 1 = the dependency: the last slot given

local function put(x)
  n = n + 1
  out[n] = x
end

local function anchor_of(sh, h)
  if sh.anchor == 0 then
    return nil
  end
  local a = sh.anchor == 1 and 1 or h
  if not lasts[a] then
    local raw = redis.call('HGET', KEYS[a], 'last')
    lasts[a] = {at = raw and min(tonumber(raw), now + SPREAD_MAX) or 0}
  end
  return lasts[a]
end

-- amounts is what is asked of each unit: the cost, or with a minimum what is left of it.
local function amounts(sh, list)
  if not sh.min then
    return sh.costs
  end
  local am = {}
  for u = 1, #sh.costs do
    am[u] = sh.costs[u]
    if sh.min[u] < am[u] then
      for j = 1, #list do
        if sh.unit[j] == u and not rows[sh.rows[j]].shadow then
          am[u] = min(am[u], (view(list[j])))
        end
      end
      am[u] = max(am[u], sh.min[u])
    end
  end
  return am
end

local function views(sh, list, am, waits)
  for j = 1, #list do
    local left, reset = view(list[j])
    out[n + 1], out[n + 2], out[n + 3] = left, reset, waits and waits[j] or 0
    n = n + 3
  end
end

-- refuse answers an ask that fits at `fit`, -1: never. It spreads those refused together, unless this caller was told
-- a time before; it returns when to come back.
local function refuse(sh, all, waits, am, fit, told, dry)
  local worst, blocked = -1, -1
  for j = 1, #all do
    local w = waits[j]
    if not all[j].row.shadow and w ~= 0 then
      if w < 0 then
        w = TOP
      end
      if w > worst then
        worst, blocked = w, j
      end
    end
  end
  local back = fit
  if fit >= 0 and blocked > 0 then
    local st = all[blocked]
    if told and told > now then
      back = max(fit, told)
    elseif dry then
      back = max(fit, min(next_of(st), fit + SPREAD_MAX))
    else
      local u = sh.unit[blocked]
      back = spread(st, u > 0 and am[u] or 1, fit)
    end
  end
  put(1)
  put(fit < 0 and -1 or fit - now)
  put(back < 0 and -1 or back - now)
  put(blocked - 1)
  return back
end

-- attempt takes, or finds out why not. It returns true and the slot, or false and what refuse needs. slot_wait < 0 takes
-- now. What it charged is listed in charged.
local function attempt(sh, h, slot_wait, id, charged)
  local all = resolve(sh, h)
  local am = amounts(sh, all)
  local list, costs, waits = {}, {}, {}
  local fits = true
  for j = 1, #all do
    local u = sh.unit[j]
    local c = u == 0 and 1 or am[u]
    waits[j] = 0
    if c > 0 then
      local st = all[j]
      local t = first(st, now, c)
      if t ~= now then
        waits[j] = t < 0 and -1 or t - now
      end
      if not st.row.shadow then
        list[#list + 1], costs[#costs + 1] = st, c
        if t ~= now and (slot_wait < 0 or st.row.reject) then
          fits = false
        end
      end
    end
  end
  local at = now
  local last
  if slot_wait >= 0 then
    last = anchor_of(sh, h)
    at = joint(list, costs, max(now, last and last.at or 0), 1)
    if at < 0 or at - now > slot_wait then
      fits = false
    end
    for j = 1, #list do
      if fits and list[j].kind == TOKEN and at > now and #list[j].slots >= 256 then
        fits = false
        at = list[j].slots[1] + slot_wait
      end
    end
  end
  if not fits then
    if slot_wait >= 0 then
      -- What holds it back may be the line alone, which is a matter of the buckets.
      for j = 1, #all do
        if waits[j] == 0 and all[j].kind == TOKEN and not all[j].row.shadow and at > now then
          waits[j] = at - now
        end
      end
    end
    return false, all, list, costs, waits, am, at
  end
  for j = 1, #all do
    local u = sh.unit[j]
    local c = u == 0 and 1 or am[u]
    -- A shadow limit counts what it would have let through.
    if c > 0 and (not all[j].row.shadow or first(all[j], at, c) == at) then
      charge(all[j], at, c, id)
      if charged then
        charged[#charged + 1] = j
      end
    end
  end
  if last and slot_wait >= 0 then
    last.changed = true
    last.at = max(last.at, at)
  end
  return true, all, list, costs, waits, am, at
end

-- when_fits is the first instant, on whole milliseconds, at which a refused ask fits. A reservation fits when its limits
-- that reject do and its slot, which is `at` or later, is no further ahead than it may wait.
local function when_fits(sh, h, list, costs, slot_wait, at)
  if slot_wait < 0 then
    return joint(list, costs, now, 1000)
  end
  local rl, rc = {}, {}
  for j = 1, #list do
    if list[j].row.reject then
      rl[#rl + 1], rc[#rc + 1] = list[j], costs[j]
    end
  end
  local last = anchor_of(sh, h)
  for _ = 1, 1000 do
    if at < 0 then
      return -1
    end
    local t = joint(rl, rc, now + ceil_div(max(0, at - slot_wait - now), 1000) * 1000, 1000)
    if t < 0 then
      return -1
    end
    at = joint(list, costs, max(t, last and last.at or 0), 1)
    if at >= 0 and at - t <= slot_wait then
      return t
    end
  end
  return -1
end

local function admitted(all, sh, am, waits, at, finish)
  put(0)
  put(at - now)
  put(finish)
  for u = 1, #am do
    put(am[u])
  end
  views(sh, all, am, waits)
end
