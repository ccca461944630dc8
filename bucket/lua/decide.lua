-- Part 4 of decide, the general way: what a batch asks for, and the states that it is about.
local pos = 4
local function arg()
  pos = pos + 1
  return ARGV[pos]
end
local function num()
  pos = pos + 1
  return tonumber(ARGV[pos])
end

for i = 1, num() do
  rows[i] = {
    kind = num(), tenant = num() == 1, field = arg(), identity = arg(), shadow = num() == 1, reject = num() == 1,
    size = num(), space_n = num(), space_p = num(), ttl = num(), a = num(), b = num(), c = num(), d = num(),
  }
end

local shapes = {}
for i = 1, num() do
  local sh = {anchor = num(), rows = {}, unit = {}, costs = {}, own = {}, shared = {}}
  for j = 1, num() do
    local r = num()
    sh.rows[j], sh.unit[j] = r, num()
    if rows[r].tenant then
      sh.own[#sh.own + 1] = r
    else
      sh.shared[#sh.shared + 1] = r
    end
  end
  for j = 1, num() do
    sh.costs[j] = num()
  end
  if num() == 1 then
    sh.min = {}
    for j = 1, #sh.costs do
      sh.min[j] = num()
    end
  end
  shapes[i] = sh
end

-- resolve lists the states of a shape's charges for one tenant.
local resolved = {}
local function resolve(sh, h)
  local by = resolved[sh]
  if not by then
    by = {}
    resolved[sh] = by
  end
  local list = by[h]
  if not list then
    list = {}
    if #sh.shared > 0 then
      fetch(sh.shared, 2)
    end
    if #sh.own > 0 then
      fetch(sh.own, h)
    end
    for j = 1, #sh.rows do
      local r = sh.rows[j]
      list[j] = states[rows[r].tenant and h or 2][r]
    end
    by[h] = list
  end
  return list
end
