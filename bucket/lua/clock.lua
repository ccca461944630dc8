-- Prelude 1, the clock. redis_time() is the only place where time comes from; tests load another file in its place.
-- Returns TIME in whole microseconds.
local function redis_time()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end
