-- Prelude 6, sets of ends: concurrency grants and sliding logs.
--
-- Both are a sorted set of their own, "<state hash>/<field>", member -> end: what is taken at an instant counts until
-- its end. A grant is one member, its id; a log entry of cost c is c members "<id>:<i>". The set is the only truth, so
-- count and list cannot drift apart. Only `next` lies in the state hash. The row has a = microseconds from charge to
-- end, b = 1 for a log.

local function slots_load(st)
  st.key = KEYS[st.h] .. '/' .. st.row.field
  st.count = redis.call('ZCOUNT', st.key, '(' .. str(now), '+inf')
  st.adds = {}
end

-- held counts the ends after t.
local function slots_held(st, t)
  if t == now then
    return st.count
  end
  local n = redis.call('ZCOUNT', st.key, '(' .. str(t), '+inf')
  for i = 1, #st.adds do
    if st.adds[i].at > t then
      n = n + 1
    end
  end
  return n
end

-- first: the instant at which so many of the earliest ends have passed that cost fits.
local function slots_first(st, from, cost)
  local size = st.row.size
  if cost > size then
    return -1
  end
  local need = slots_held(st, from) + cost - size
  if need <= 0 then
    return from
  end
  if st.memo_from == from and st.memo_need == need then
    return st.memo
  end
  local ends = {}
  local r = redis.call('ZRANGEBYSCORE', st.key, '(' .. str(from), '+inf', 'WITHSCORES', 'LIMIT', 0, need)
  for i = 2, #r, 2 do
    ends[#ends + 1] = tonumber(r[i])
  end
  for i = 1, #st.adds do
    if st.adds[i].at > from then
      ends[#ends + 1] = st.adds[i].at
    end
  end
  table.sort(ends)
  st.memo_from, st.memo_need, st.memo = from, need, ends[need]
  return ends[need]
end

-- take adds no more to a log than fill it by themselves: what is settled to any cost keeps it full as long as its size does.
local function slots_take(st, at, cost, id)
  st.memo_from = nil
  cost = min(cost, st.row.size)
  local finish = at + st.row.a
  for i = 1, cost do
    local member = id
    if st.row.b == 1 then
      member = id .. ':' .. i
    end
    st.adds[#st.adds + 1] = {member = member, at = finish}
  end
  if finish > now then
    st.count = st.count + cost
  end
end

-- end_of returns when the member ends, or nil where it has.
local function slots_end_of(st, member)
  local score = redis.call('ZSCORE', st.key, member)
  local at = score and tonumber(score)
  if at and at > now then
    return at
  end
end

-- release ends a grant before its time; it returns false where it had ended. What names an earlier charge is written at
-- once: it never meets this call's additions, whose ids nobody knows yet.
local function slots_release(st, id)
  local live = slots_end_of(st, id) ~= nil
  redis.call('ZREM', st.key, id)
  if live then
    st.count = st.count - 1
    st.memo_from = nil
  end
  return live
end

-- give returns cost of the amount that was charged under that id.
local function slots_give(st, amount, cost, id)
  if st.row.b ~= 1 then
    slots_release(st, id)
    return
  end
  local members = {}
  for i = amount - cost + 1, amount do
    members[#members + 1] = id .. ':' .. i
  end
  redis.call('ZREM', st.key, unpack(members))
  st.memo_from = nil
  st.count = redis.call('ZCOUNT', st.key, '(' .. str(now), '+inf')
  for i = 1, #st.adds do
    if st.adds[i].at > now then
      st.count = st.count + 1
    end
  end
end

-- extend moves the end of a grant, never to an earlier one; it returns the new end, or nil where it had ended.
local function slots_extend(st, id, at)
  local old = slots_end_of(st, id)
  if not old then
    return nil
  end
  at = max(old, min(at, now + st.row.a))
  redis.call('ZADD', st.key, str(at), id)
  touch(st.key, st.row.ttl)
  st.memo_from = nil
  return at
end

local function slots_view(st)
  local left, reset = max(0, st.row.size - st.count), 0
  if st.row.b == 1 then
    local r = redis.call('ZRANGE', st.key, -1, -1, 'WITHSCORES')
    local last = r[2] and tonumber(r[2]) or now
    for i = 1, #st.adds do
      last = max(last, st.adds[i].at)
    end
    reset = max(0, last - now)
  end
  return left, reset
end

-- save writes the set. One write in eight, and each refusal (which sets sweep), also drops the ends that have passed;
-- they count for nothing meanwhile.
local function slots_save(st)
  local args = {}
  for i = 1, #st.adds do
    args[#args + 1] = str(st.adds[i].at)
    args[#args + 1] = st.adds[i].member
  end
  for i = 1, #args, 4000 do
    redis.call('ZADD', st.key, unpack(args, i, min(i + 3999, #args)))
  end
  if st.sweep or floor(now / 1000) % 8 == 0 then
    redis.call('ZREMRANGEBYSCORE', st.key, '-inf', str(now))
  end
  if #args > 0 then
    touch(st.key, st.row.ttl)
  end
end
