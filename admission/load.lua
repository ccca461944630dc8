-- load reads the policy in force.
--
-- KEYS[1]  sluice:{d}:policy
-- KEYS[2]  sluice:{d}:meta
-- returns  nil without a policy, else {version, document, the version that it brought back or false}; the document is
--          false where it was lost
local v = redis.call('HGET', KEYS[2], 'v')
if not v then
  return false
end
local m = redis.call('HMGET', KEYS[1], v, 'of:' .. v)
return {v, m[1], m[2]}
