-- Part 7 of decide: the items of the batch, in order, and what is written at the end.
local items = {}
local gives = false

local function read_k()
  return {
    op = 'k', shape = shapes[num()], hash = num(), id = arg(), key = arg(), fp = arg(), ttl = num(), settle = num(),
    wait = num(), dry = num() == 1, tenant = arg(), class = arg(),
  }
end

-- Everything is read and every state is loaded before anything happens.
while pos < #ARGV do
  local op = arg()
  local it
  if op == 'r' then
    it = {count = num(), shape = shapes[num()], hash = num()}
  elseif op == 'k' then
    it = read_k()
  elseif op == 'g' then
    it = {members = {}}
    for i = 1, num() do
      pos = pos + 1
      it.members[i] = read_k()
      resolve(it.members[i].shape, it.members[i].hash)
    end
  else
    it = {shape = shapes[num()], hash = num()}
    if op ~= 'v' then
      it.id = arg()
      gives = true
    end
    if op == 'u' then
      it.at, it.amounts = num(), {}
      for u = 1, #it.shape.costs do
        it.amounts[u] = num()
      end
    elseif op == 's' then
      it.real = {}
      for u = 1, #it.shape.costs do
        it.real[u] = num()
      end
    elseif op == 'x' then
      it.us = num()
    end
  end
  it.op = op
  if it.shape then
    resolve(it.shape, it.hash)
  end
  items[#items + 1] = it
end
if stale then
  return {'stale', str(real)}
end
if gives then
  -- What gives back must work when Redis is out of memory: after one write that needs none it lets the whole script pass.
  redis.call('PERSIST', meta)
end

local function recall(key)
  local raw = remembered[key]
  if raw == nil then
    raw = redis.call('GET', prefix .. 'idem:' .. key) or false
    remembered[key] = raw
  end
  return raw
end

local function remember(key, raw, ms)
  remembered[key] = raw
  writes[#writes + 1] = {'SET', prefix .. 'idem:' .. key, raw, 'PX', str(ms)}
end

-- keyed answers from the record of the key, "a <fingerprint> <until> <answer>" of an admitted ask or "r <time>" of a
-- refused one. It returns true when it did, else when the key was told to come back.
local function keyed(it)
  if it.key == '' then
    return false
  end
  local raw = recall(it.key)
  if not raw then
    return false
  end
  local kind, rest = string.match(raw, '^(%S+) (.*)$')
  if kind == 'r' then
    return false, tonumber(rest)
  end
  local fp, till, answer = string.match(rest, '^(%S+) (%d+) (.*)$')
  if now > tonumber(till) then
    return false
  end
  if fp == it.fp then
    put(2)
    put(answer)
    return true
  end
  put(3)
  return true, nil, true
end

-- leave writes what an admitted ask leaves behind, and answers.
local function leave(it, all, charged, am, waits, at)
  local finish = -1
  local charges = {}
  for i = 1, #charged do
    local st = all[charged[i]]
    local u = it.shape.unit[charged[i]]
    charges[i] = {tenant = st.row.tenant, field = st.row.field, amount = u == 0 and 1 or am[u]}
  end
  -- What was estimated at nothing is settled too.
  for j = 1, it.settle < 0 and 0 or #all do
    local u = it.shape.unit[j]
    if u > 0 and am[u] == 0 then
      charges[#charges + 1] = {tenant = all[j].row.tenant, field = all[j].row.field, amount = 0}
    end
  end
  -- Where there are only shadow limits they are tried out as if they were in force, also where they had no room. Else they
  -- shorten nothing.
  for shadow = 0, 1 do
    for j = 1, finish < 0 and #all or 0 do
      local st = all[j]
      if is_grant(st) and st.row.shadow == (shadow == 1) and (finish < 0 or at + st.row.a < finish) then
        finish = at + st.row.a
      end
    end
  end
  local from = n
  admitted(all, it.shape, am, waits, at, finish < 0 and -1 or finish - now)
  if it.dry then
    return
  end
  local by = it.settle < 0 and -1 or at + it.settle
  if finish >= 0 or by >= 0 or it.wait >= 0 then
    grant_write({
      id = it.id, state = 'h', at = at, finish = finish, by = by, reserved = it.wait >= 0, charges = charges, diffs = {},
      key = it.key ~= '' and it.key or '-',
      class = it.class, tenant = it.tenant,
    })
  end
  if it.key ~= '' then
    local parts = {'a', it.fp, str(now + it.ttl * 1000), it.id, str(real), by < 0 and '-1' or str(by - now), #am, #all}
    for i = from + 2, n do
      parts[#parts + 1] = str(out[i])
    end
    remember(it.key, table.concat(parts, ' '), it.ttl)
  end
end

-- rich asks once; it returns what refuse needs where the ask does not fit, and true where the key was another's.
local function rich(it)
  local done, told, mismatch = keyed(it)
  if done then
    return nil, mismatch
  end
  local charged = {}
  local ok, all, list, costs, waits, am, at = attempt(it.shape, it.hash, it.wait, it.id, charged)
  if ok then
    leave(it, all, charged, am, waits, at)
    return nil
  end
  return {all = all, list = list, costs = costs, waits = waits, am = am, at = at, told = told}
end

local function answer_refused(it, f)
  local fit = when_fits(it.shape, it.hash, f.list, f.costs, it.wait, f.at)
  local back = refuse(it.shape, f.all, f.waits, f.am, fit, f.told, it.dry)
  views(it.shape, f.all, f.am, f.waits)
  if it.key ~= '' and back > now and not it.dry then
    -- A second more than it matters, so that `told` and not the expiry decides.
    remember(it.key, 'r ' .. str(back), ceil_div(back - now, 1000) + 1000)
  end
end

-- total is what a whole group asks of each state.
local function total(members)
  local list, costs, index = {}, {}, {}
  for i = 1, #members do
    local sh = members[i].shape
    local all = resolve(sh, members[i].hash)
    for j = 1, #all do
      local u = sh.unit[j]
      local c = u == 0 and 1 or (sh.min or sh.costs)[u]
      if c > 0 and not all[j].row.shadow then
        local k = index[all[j]]
        if not k then
          k = #list + 1
          index[all[j]] = k
          list[k], costs[k] = all[j], 0
        end
        costs[k] = costs[k] + c
      end
    end
  end
  return list, costs, index
end

-- trial runs f and takes back what it did unless it returns true.
local function trial(f)
  local from, wrote, was = n, #writes, {}
  for a, last in pairs(lasts) do
    was[a] = copy(last)
  end
  local known = {}
  for k, v in pairs(remembered) do
    known[k] = v
  end
  undone = {}
  if f() then
    undone = nil
    return
  end
  restore()
  lasts, remembered = was, known
  for i = #writes, wrote + 1, -1 do
    writes[i] = nil
  end
  return from
end

local function group(it)
  local members = it.members
  local failed, f, mismatch
  local fit -- of a reservation: behind the members before it
  local from = trial(function()
    for i = 1, #members do
      f, mismatch = rich(members[i])
      if f or mismatch then
        failed = i
        if f and members[i].wait >= 0 then
          fit = when_fits(members[i].shape, members[i].hash, f.list, f.costs, members[i].wait, f.at)
        end
        return false
      end
    end
    return not members[1].dry
  end)
  if not failed then
    return
  end
  for i = n, from + 1, -1 do
    out[i] = nil
  end
  n = from
  for i = 1, #members do
    if i ~= failed then
      put(6)
    elseif mismatch then
      put(3)
    else
      local m = members[i]
      local list, costs, index = total(members)
      local all = resolve(m.shape, m.hash)
      local waits = {}
      if fit then
        index = {}
        waits = f.waits
      end
      for j = 1, #all do
        local k = index[all[j]]
        waits[j] = waits[j] or 0
        if k then
          local t = first(all[j], now, costs[k])
          waits[j] = t < 0 and -1 or t - now
        end
      end
      refuse(m.shape, all, waits, f.am, fit or joint(list, costs, now, 1000), nil, m.dry)
      views(m.shape, all, f.am, waits)
    end
  end
end

for i = 1, #items do
  local it = items[i]
  if it.op == 'r' then
    for _ = 1, it.count do
      local ok, all, list, costs, waits, am, at = attempt(it.shape, it.hash, -1, '')
      if ok then
        admitted(all, it.shape, am, waits, at, -1)
      else
        answer_refused({shape = it.shape, hash = it.hash, wait = -1, key = ''}, {
          all = all, list = list, costs = costs, waits = waits, am = am, at = at,
        })
      end
    end
  elseif it.op == 'k' then
    local f
    if it.dry then
      trial(function()
        f = rich(it)
        return f ~= nil
      end)
    else
      f = rich(it)
    end
    if f then
      answer_refused(it, f)
    end
  elseif it.op == 'g' then
    group(it)
  elseif it.op == 'v' then
    local all = resolve(it.shape, it.hash)
    put(0)
    put(0)
    put(-1)
    for u = 1, #it.shape.costs do
      put(0)
    end
    views(it.shape, all)
  else
    verb[it.op](it)
  end
end

local dirty = #writes > 0
for i = 1, #order do
  dirty = dirty or order[i].dirty
end
save_states()
for i = 1, #writes do
  redis.call(unpack(writes[i]))
end
for a, last in pairs(lasts) do
  if last.changed then
    redis.call('HSET', KEYS[a], 'last', str(last.at))
    dirty = true
  end
end
if dirty then
  redis.call('HSET', meta, 'clk', str(offset) .. ' ' .. str(now))
end
keep_reply(out)
return out
