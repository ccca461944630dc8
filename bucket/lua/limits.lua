-- Prelude 7, any limit: rows, states and what is common to the kinds.
--
-- A row is one limit with the parameters that hold for some tenants:
--   {kind, tenant (its state is the tenant's), field, identity, shadow, reject, size, space_n, space_p, ttl, a, b, c, d}
-- kind 1 token bucket, 2 set of ends, 3 calendar quota, 4 sliding counter. space_n units per space_p microseconds is the
-- limit's long-run rate. A state is one row in one state hash: KEYS[2] for the dependency, KEYS[3..] for tenants.
local TOKEN, SLOTS, QUOTA, SLIDING = 1, 2, 3, 4

local rows = {}
local states = {} -- by hash, by row
local order = {} -- states in the order in which they were loaded, which is the order of the writes
local stale = false

-- undone holds what the states of an all-or-nothing group or of a dry run were before; nil outside of one.
local undone

local function copy(x)
  if type(x) ~= 'table' then
    return x
  end
  local y = {}
  for k, v in pairs(x) do
    y[k] = k == 'row' and v or copy(v)
  end
  return y
end

-- changes is called before a state changes.
local function changes(st)
  if undone and not undone[st] then
    undone[st] = copy(st)
  end
  st.dirty = true
end

-- restore takes back what happened since undone was set.
local function restore()
  for st, was in pairs(undone) do
    for k in pairs(st) do
      st[k] = nil
    end
    for k, v in pairs(was) do
      st[k] = v
    end
  end
  undone = nil
end

-- as_stored returns the row with the parameters that the state was written with, for a call that is right under any policy:
-- a state that it changes keeps its shape. nil where there is nothing to change any more.
local function as_stored(row, raw)
  if row.kind == SLOTS then
    return row
  end
  local a, b, c, d = string.match(raw or '', '^(%d+) (%d+) ?(%d*) ?(%d*)')
  a, b, c, d = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
  if not a or (row.kind == QUOTA and real >= c) then
    return nil
  end
  row = copy(row)
  if row.kind == TOKEN then
    row.a, row.b = c, d
  elseif row.kind == QUOTA then
    row.a, row.b, row.c, row.d = min(a, real), b, c, c + c - b
  else
    row.a = a
  end
  return row
end

local function load_state(row, h, raw)
  local st = {kind = row.kind, h = h}
  if ARGV[1] == '' then
    local was = as_stored(row, raw)
    st.void = not was
    row = was or row
  end
  st.row = row
  if st.void then
    raw = nil
  end
  if row.kind == TOKEN then
    token_load(st, raw)
  elseif row.kind == SLOTS then
    slots_load(st)
  elseif row.kind == QUOTA then
    if not quota_load(st, raw) and not st.void then
      stale = true
    end
  else
    sliding_load(st, raw)
  end
  order[#order + 1] = st
  return st
end

-- fetch loads the states that a shape needs from one hash and has not yet, in one read.
local function fetch(list, h)
  local known = states[h]
  if not known then
    known = {}
    states[h] = known
  end
  local fields, wanted = {}, {}
  for i = 1, #list do
    local r = list[i]
    if not known[r] then
      if rows[r].kind == SLOTS then
        known[r] = load_state(rows[r], h)
      else
        fields[#fields + 1] = rows[r].field
        wanted[#wanted + 1] = r
      end
    end
  end
  if #fields > 0 then
    local raw = redis.call('HMGET', KEYS[h], unpack(fields))
    for i = 1, #wanted do
      known[wanted[i]] = load_state(rows[wanted[i]], h, raw[i])
    end
  end
end

-- first is the first instant from `from` on at which cost fits the limit, -1: never.
local function first(st, from, cost)
  local kind = st.kind
  if kind == TOKEN then
    return token_first(st, from, cost)
  elseif kind == SLOTS then
    return slots_first(st, from, cost)
  elseif kind == QUOTA then
    return quota_first(st, from, cost)
  end
  return sliding_first(st, from, cost)
end

local function charge(st, at, cost, id)
  changes(st)
  local kind = st.kind
  if kind == TOKEN then
    token_take(st, at, cost)
  elseif kind == SLOTS then
    slots_take(st, at, cost, id)
  elseif kind == QUOTA then
    quota_take(st, at, cost)
  else
    sliding_take(st, at, cost)
  end
end

-- give returns cost of the amount that was charged at that slot under that id.
local function give(st, at, amount, cost, id)
  changes(st)
  local kind = st.kind
  if kind == TOKEN then
    token_give(st, at, cost)
  elseif kind == SLOTS then
    slots_give(st, amount, cost, id)
  elseif kind == QUOTA then
    quota_give(st, at, cost)
  else
    sliding_give(st, at, cost)
  end
end

-- view is what is left and the time until the limit is untouched again.
local function view(st)
  local kind = st.kind
  if kind == TOKEN then
    return token_view(st)
  elseif kind == SLOTS then
    return slots_view(st)
  elseif kind == QUOTA then
    return quota_view(st)
  end
  return sliding_view(st)
end

-- joint is the first instant from `from` on at which every cost fits, -1: never. With a grid, only whole multiples of it
-- after now are tried. costs[i] belongs to list[i].
local function joint(list, costs, from, grid)
  local t = from
  for _ = 1, 1000 do
    local moved = false
    for i = 1, #list do
      local x = first(list[i], t, costs[i])
      if x < 0 then
        return -1
      end
      if x > t then
        t = now + ceil_div(x - now, grid) * grid
        moved = true
      end
    end
    if not moved then
      return t
    end
  end
  return -1
end

-- spread sends the losers of one crowd to different instants: the limit keeps when the next of them comes back, and
-- moves it by the time in which it yields the cost, at most a minute beyond the instant at which the ask would fit.
local function next_of(st)
  if st.kind == SLOTS and not st.next then
    local raw = redis.call('HGET', KEYS[st.h], st.row.field)
    st.next = raw and tonumber(raw) or 0
  end
  return st.next
end

local function spread(st, cost, fit)
  local row = st.row
  local at = max(fit, min(next_of(st), fit + SPREAD_MAX))
  st.next = min(at + math.ceil(cost * row.space_p / row.space_n), fit + SPREAD_MAX)
  st.dirty, st.sweep = true, true
  return at
end

-- save writes every state that changed, one write per hash, and keeps a tenant's hash alive as long as it says anything.
local function save_states()
  local fields, ttl, hashes = {}, {}, {}
  for i = 1, #order do
    local st = order[i]
    local h, row = st.h, st.row
    if st.dirty then
      local raw
      if st.kind == TOKEN then
        raw = token_save(st)
      elseif st.kind == QUOTA then
        raw = quota_save(st)
      elseif st.kind == SLIDING then
        raw = sliding_save(st)
      else
        slots_save(st)
        raw = st.next and str(st.next)
      end
      if raw then
        local f = fields[h]
        if not f then
          f = {}
          fields[h], ttl[h] = f, 0
          hashes[#hashes + 1] = h
        end
        f[#f + 1] = row.field
        f[#f + 1] = raw
        ttl[h] = max(ttl[h], row.ttl)
        if st.kind == TOKEN then
          ttl[h] = max(ttl[h], floor(ceil_div(st.used, row.a) / 1000) + SPREAD_MAX / 1000)
        end
      end
    end
  end
  for i = 1, #hashes do
    local h = hashes[i]
    redis.call('HSET', KEYS[h], unpack(fields[h]))
    if h > 2 then
      touch(KEYS[h], str(ttl[h]))
    end
  end
end
