-- Part 3 of decide, the short way: its items.
--
-- Plain takes that follow each other and want the same of the same limits are one run. The first m of it fit, the others
-- do not, and m is a division; so a run costs the same however long it is, and the caller works out the single answers.
local short_now = {} -- by charge: the states of the item at hand
local short_waits = {} -- by charge: when what was refused would fit, 0: now

-- short_shapes reads the shapes that begin at p; it returns where they end, nil where one has minima.
local function short_shapes(p)
  local list = {}
  for i = 1, tonumber(ARGV[p]) do
    local count = tonumber(ARGV[p + 2])
    local units = p + 3 + 2 * count
    local sh = {count = count, rows = {}, costs = {}, own = {}, shared = {}, amounts = {}}
    for j = 1, count do
      local r = tonumber(ARGV[p + 1 + 2 * j])
      local to = row_tenant[r] and sh.own or sh.shared
      to[#to + 1] = r
      sh.rows[j], sh.costs[j] = r, tonumber(ARGV[units + tonumber(ARGV[p + 2 + 2 * j])])
      if sh.costs[j] > row_size[r] then
        return nil
      end
    end
    local last = units + tonumber(ARGV[units])
    for u = units + 1, last do
      sh.amounts[u - units] = tonumber(ARGV[u])
    end
    p = last + 1
    if ARGV[p] ~= '0' then
      return nil
    end
    list[i] = sh
  end
  return p, list
end

-- short_fit loads the states of an item and returns how many of count asks fit; nil: not for the short way.
local function short_fit(sh, h, count)
  if #sh.shared > 0 and not short_load(sh.shared, 2) or #sh.own > 0 and not short_load(sh.own, h) then
    return nil
  end
  local m = count
  for j = 1, sh.count do
    local r, cost = sh.rows[j], sh.costs[j]
    local i = short_index[(row_tenant[r] and h or 2) * row_count + r]
    short_now[j] = i
    if cost > 0 then
      m = min(m, floor((row_cap[r] - short_used[i]) / (cost * row_unit[r])))
    end
  end
  return max(0, m)
end

local function short_charge(sh, m)
  for j = 1, sh.count do
    if m > 0 and sh.costs[j] > 0 then
      local i = short_now[j]
      if row_bucket[sh.rows[j]] then
        short_lows[i] = lows_push(short_lows[i], now, short_used[i])
      end
      short_used[i], short_dirty[i] = short_used[i] + m * sh.costs[j] * row_unit[sh.rows[j]], true
    end
  end
end

-- short_refuse answers count asks that do not fit: when the first of them fits and comes back, the step by which each
-- later one comes back later, and the charge that blocks it. told is when this caller was told to come back. It returns
-- nil where a quota decides.
local function short_refuse(sh, count, told)
  local fit, worst, blocked = 0, 0, 0
  for j = 1, sh.count do
    local r, wait = sh.rows[j], 0
    local over = short_used[short_now[j]] + sh.costs[j] * row_unit[r] - row_cap[r]
    if over > 0 and sh.costs[j] > 0 then
      if not row_bucket[r] then
        return nil
      end
      wait = ceil_div(over, row_refill[r])
      fit = max(fit, ceil_div(wait, 1000) * 1000)
      if wait > worst then
        worst, blocked = wait, j
      end
    end
    short_waits[j] = wait
  end
  for j = 1, sh.count do
    if not row_bucket[sh.rows[j]] and now + fit >= row_end[sh.rows[j]] then
      return nil
    end
  end
  if told and told > now then
    return fit, max(fit, told - now), 0, blocked
  end
  local i, at = short_now[blocked], row_at[sh.rows[blocked]]
  local most = fit + SPREAD_MAX
  local back = max(fit, min(tonumber(short_next[i]) - now, most))
  local step = math.ceil(sh.costs[blocked] * ARGV[at + 9] / ARGV[at + 8])
  short_next[i], short_dirty[i] = str(now + min(back + count * step, most)), true
  return fit, back, step, blocked
end

-- short_run answers a run; false: not for the short way.
local function short_run(out, sh, h, count)
  local m = short_fit(sh, h, count)
  if not m then
    return false
  end
  local n = #out
  out[n + 1], out[n + 2], out[n + 3] = 8, count, m
  n = n + 3
  for j = 1, sh.count do
    out[n + 1], out[n + 2] = short_used[short_now[j]], row_bucket[sh.rows[j]] and 0 or row_end[sh.rows[j]] - now
    n = n + 2
  end
  short_charge(sh, m)
  if m < count then
    local fit, back, step, blocked = short_refuse(sh, count - m)
    if not fit then
      return false
    end
    out[n + 1], out[n + 2], out[n + 3], out[n + 4] = fit, back, step, blocked - 1
    for j = 1, sh.count do
      out[n + 4 + j] = short_waits[j]
    end
  end
  return true
end

local short_recalled, short_keys, short_records, short_ttls = {}, {}, {}, {}
local real_text = str(real)
local till_ttl, till_text -- until when a record of that many milliseconds counts

local function short_remember(key, record, ttl)
  local k = #short_keys + 1
  short_keys[k], short_records[k], short_ttls[k] = key, record, ttl
  short_recalled[key] = record
end

-- short_view is what is left of a state and the time until it is untouched.
local function short_view(r, used)
  local reset = row_bucket[r] and ceil_div(used, row_refill[r]) or row_end[r] - now
  local left = max(0, floor((row_cap[r] - used) / row_unit[r]))
  -- Where a number becomes text of itself it keeps 14 digits.
  return left < 1e14 and left or str(left), reset < 1e14 and reset or str(reset)
end

-- short_keyed answers the take with an idempotency key that begins at p; false: not for the short way. Its record is that
-- of remember.
local function short_keyed(out, sh, h, p)
  local key, told = prefix .. 'idem:' .. ARGV[p + 4], nil
  local n = #out
  local m = short_fit(sh, h, 1)
  if not m then
    return false
  end
  local record = short_recalled[key] or call('GET', key)
  if record then
    local fp, till, answer = string.match(record, '^a (%S+) (%d+) (.*)$')
    if not fp then
      told = tonumber(string.match(record, '^r (%d+)$'))
    elseif now <= tonumber(till) then
      if fp == ARGV[p + 5] then
        out[n + 1], out[n + 2] = 2, answer
      else
        out[n + 1] = 3
      end
      return true
    end
  end
  if m == 0 then
    local fit, back, _, blocked = short_refuse(sh, 1, told)
    if not fit then
      return false
    end
    out[n + 1], out[n + 2], out[n + 3], out[n + 4] = 1, fit, back, blocked - 1
    for j = 1, sh.count do
      out[n + 2 + 3 * j], out[n + 3 + 3 * j] = short_view(sh.rows[j], short_used[short_now[j]])
      out[n + 4 + 3 * j] = short_waits[j]
    end
    if back > 0 then
      -- A second more than it matters, so that `told` and not the expiry decides.
      short_remember(key, 'r ' .. str(now + back), str(ceil_div(back, 1000) + 1000))
    end
    return true
  end
  short_charge(sh, 1)
  local text = '0 -1'
  for u = 1, #sh.amounts do
    text = text .. ' ' .. sh.amounts[u]
  end
  for j = 1, sh.count do
    local left, reset = short_view(sh.rows[j], short_used[short_now[j]])
    text = text .. ' ' .. left .. ' ' .. reset .. ' 0'
  end
  out[n + 1], out[n + 2] = 9, text
  local ttl = ARGV[p + 6]
  if ttl ~= till_ttl then
    till_ttl, till_text = ttl, ' ' .. str(now + ttl * 1000) .. ' '
  end
  short_remember(key, 'a ' .. ARGV[p + 5] .. till_text .. ARGV[p + 3] .. ' ' .. real_text .. ' -1 ' .. #sh.amounts .. ' ' ..
    sh.count .. ' ' .. text, ttl)
  return true
end

-- short decides the whole batch and returns its reply, or nil.
local function short()
  local from, shapes = short_rows(), nil
  if from then
    from, shapes = short_shapes(from + 1)
  end
  if not from then
    return nil
  end
  local p = from + 1
  while p <= #ARGV do
    if ARGV[p] == 'r' then
      p = p + 4
    elseif ARGV[p] == 'k' and ARGV[p + 4] ~= '' and ARGV[p + 7] == '-1' and ARGV[p + 8] == '-1' and ARGV[p + 9] == '0' then
      p = p + 12
    else
      return nil
    end
  end
  local out = {'ok', real_text, now_text}
  p = from + 1
  while p <= #ARGV do
    local served
    if ARGV[p] == 'r' then
      served = short_run(out, shapes[tonumber(ARGV[p + 2])], tonumber(ARGV[p + 3]), tonumber(ARGV[p + 1]))
      p = p + 4
    else
      served = short_keyed(out, shapes[tonumber(ARGV[p + 1])], tonumber(ARGV[p + 2]), p)
      p = p + 12
    end
    if not served then
      return nil
    end
  end
  local wrote = short_save()
  for k = 1, #short_keys do
    call('SET', short_keys[k], short_records[k], 'PX', short_ttls[k])
    wrote = true
  end
  if wrote then
    call('HSET', meta, 'clk', str(offset) .. ' ' .. now_text)
  end
  return out
end

local reply = short()
if reply then
  keep_reply(reply)
  return reply
end
