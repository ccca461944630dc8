-- Part 6 of decide: what an ask leaves behind, and the verbs on it.
--
-- A grant is one string, "<state> <until> <slot> <end> <settle by> <reserved> <key> <count> [<tenant's> <field>
-- <amount>]* [<difference>]*", then the class and the tenant on lines of their own. state: h held, l released, s settled,
-- c cancelled. Times are the dependency's, -1 none; after `until` it is forgotten. Each charge names its limit's field and
-- whether the state is the tenant's; the differences are what a settle booked.
local remembered = {} -- by idempotency key, what this call read or wrote; false: nothing
local KEEP = 60000000 -- a grant is remembered that long beyond its last use

local function grant_key(id)
  return prefix .. 'g:' .. id
end

local grants = {} -- by id, what this call read: two verbs on one grant see each other

local function grant_write(g)
  local till = max(g.finish, g.by, g.at, now) + KEEP
  local parts = {g.state, str(till), str(g.at), str(g.finish), str(g.by), g.reserved and '1' or '0', g.key, str(#g.charges)}
  for i = 1, #g.charges do
    local c = g.charges[i]
    parts[#parts + 1] = (c.tenant and '1 ' or '0 ') .. c.field .. ' ' .. str(c.amount)
  end
  for i = 1, #g.diffs do
    parts[#parts + 1] = str(g.diffs[i])
  end
  writes[#writes + 1] = {
    'SET', grant_key(g.id), table.concat(parts, ' ') .. '\n' .. g.class .. '\n' .. g.tenant, 'PX', str(ceil_div(till - now, 1000)),
  }
end

local function grant_read(id)
  if grants[id] then
    return grants[id]
  end
  local raw = redis.call('GET', grant_key(id))
  if not raw then
    return nil
  end
  local data, class, tenant = string.match(raw, '^([^\n]*)\n([^\n]*)\n(.*)$')
  local f = {}
  for x in string.gmatch(data, '%S+') do
    f[#f + 1] = x
  end
  if now > tonumber(f[2]) then
    return nil
  end
  local g = {
    id = id, state = f[1], at = tonumber(f[3]), finish = tonumber(f[4]), by = tonumber(f[5]), reserved = f[6] == '1',
    key = f[7], charges = {}, diffs = {}, class = class, tenant = tenant,
  }
  local p = 9
  for i = 1, tonumber(f[8]) do
    g.charges[i] = {tenant = f[p] == '1', field = f[p + 1], amount = tonumber(f[p + 2])}
    p = p + 3
  end
  while f[p] do
    g.diffs[#g.diffs + 1] = tonumber(f[p])
    p = p + 1
  end
  grants[id] = g
  return g
end

-- each_charge calls f with the state, the charge and the unit of what the grant holds on limits that still exist.
local function each_charge(g, sh, h, f)
  local all = resolve(sh, h)
  for i = 1, #g.charges do
    local c = g.charges[i]
    for j = 1, #all do
      local row = all[j].row
      if row.field == c.field and row.tenant == c.tenant then
        f(all[j], c, sh.unit[j])
      end
    end
  end
end

local function is_grant(st)
  return st.kind == SLOTS and st.row.b ~= 1
end

-- free ends the concurrency that a grant holds; it returns whether it had all ended before. A limit that is gone may come
-- back, so that its ends are looked for as well; a set of concurrency has a name that begins with c.
local function free(g, sh, h)
  local live, held, seen = false, false, {}
  each_charge(g, sh, h, function(st, c)
    if is_grant(st) then
      live, held, seen[c] = slots_release(st, g.id) or live, true, true
    end
  end)
  for i = 1, #g.charges do
    local c = g.charges[i]
    if not seen[c] and string.sub(c.field, 1, 1) == 'c' then
      local key = KEYS[c.tenant and h or 2] .. '/' .. c.field
      local score = tonumber(redis.call('ZSCORE', key, g.id) or '')
      redis.call('ZREM', key, g.id)
      live, held = live or (score ~= nil and score > now), true
    end
  end
  return held and not live
end

-- leave_line gives back the place at the end of the line, where the slot was the last one. tail is the last that is left.
local function leave_line(it, slot, tail)
  if slot <= now then
    return
  end
  local last = anchor_of(it.shape, it.hash)
  if last and last.at == slot then
    last.at, last.changed = tail, true
  end
end

local function tail_of(st, tail)
  if st.kind == TOKEN and #st.slots > 0 then
    return max(tail, st.slots[#st.slots])
  end
  return tail
end

local verb = {}

function verb.s(it)
  local g = grant_read(it.id)
  if not g then
    return put(4)
  end
  if g.state == 's' then
    put(7)
    put(1)
    for u = 1, #it.real do
      put(g.diffs[u] or 0)
    end
    return
  end
  if g.state == 'c' or g.by < 0 or now > g.by then
    return put(5)
  end
  for u = 1, #it.real do
    g.diffs[u] = 0
  end
  each_charge(g, it.shape, it.hash, function(st, c, u)
    if u == 0 or it.real[u] < 0 then
      return
    end
    local d = c.amount - it.real[u]
    g.diffs[u] = d
    if d > 0 then
      give(st, g.at, c.amount, d, g.id)
    elseif d < 0 then
      -- More is always booked: in a quota's window of the charge, else now.
      charge(st, st.kind == QUOTA and g.at or now, -d, g.id .. '+')
    end
  end)
  free(g, it.shape, it.hash)
  g.state = 's'
  grant_write(g)
  put(7)
  put(0)
  for u = 1, #it.real do
    put(g.diffs[u])
  end
end

function verb.l(it)
  local g = grant_read(it.id)
  if not g then
    return put(4)
  end
  if g.state ~= 'h' then
    put(7)
    return put(1)
  end
  if g.finish >= 0 then
    local late = free(g, it.shape, it.hash)
    g.state = 'l'
    grant_write(g)
    if late then
      return put(5)
    end
  end
  put(7)
  put(0)
end

function verb.x(it)
  local g = grant_read(it.id)
  if not g then
    return put(4)
  end
  local finish
  if g.state == 'h' then
    local held = false
    each_charge(g, it.shape, it.hash, function(st)
      if is_grant(st) then
        held = true
        local e = slots_extend(st, g.id, now + it.us)
        if e and (not finish or e < finish) then
          finish = e
        end
      end
    end)
    if not held and g.finish > now then -- it was let through by a shadow limit, or the limit is gone
      finish = g.finish
    end
  end
  if not finish then
    return put(5)
  end
  g.finish = finish
  grant_write(g)
  put(7)
  put(finish - now)
end

function verb.c(it)
  local g = grant_read(it.id)
  if not g then
    return put(4)
  end
  if g.state == 'c' then
    put(7)
    return put(1)
  end
  if g.state == 's' or not g.reserved or g.at <= now then
    return put(5)
  end
  if g.key ~= '-' then
    -- At once, because it is no declared key: where a cluster moves the slot this may fail, and nothing is written yet.
    redis.call('DEL', prefix .. 'idem:' .. g.key)
  end
  local tail = 0
  each_charge(g, it.shape, it.hash, function(st, c)
    give(st, g.at, c.amount, c.amount, g.id)
    tail = tail_of(st, tail)
  end)
  leave_line(it, g.at, tail)
  if g.key ~= '-' then
    -- Who asks again by the key has nothing to go by any more.
    remembered[g.key] = false
    writes[#writes + 1] = {'DEL', prefix .. 'idem:' .. g.key}
  end
  g.state = 'c'
  grant_write(g)
  put(7)
  put(0)
end

-- u: what the caller of a take never learned of.
function verb.u(it)
  local all = resolve(it.shape, it.hash)
  local tail = 0
  for j = 1, #all do
    local st, u = all[j], it.shape.unit[j]
    local amount = u == 0 and 1 or it.amounts[u]
    -- Whether a shadow limit was charged is not known, unless the charge has a name.
    if amount > 0 and not st.void and (not st.row.shadow or is_grant(st)) then
      give(st, it.at, amount, amount, it.id)
      tail = tail_of(st, tail)
    end
  end
  leave_line(it, it.at, tail)
  writes[#writes + 1] = {'DEL', grant_key(it.id)}
  put(7)
end
