-- Prelude 3, the call: one batch of asks and of verbs on grants, in order, on one dependency.
--
-- KEYS  1 meta, 2 the dependency's state hash, then the state hashes of tenants, to which items refer by their place, and
--       what the script names by itself: grants (<prefix>g:<id>), remembered answers (<prefix>idem:<key>), sets of ends,
--       the reply's key. All share one slot.
-- ARGV  1 policy version, "" for any  2 key prefix  3 number of the call, "" where it is never repeated  4 its reply's key
--       5 number of rows, then 14 values each (limits.lua)
--       then number of shapes, then for each: anchor (0 none, 1 dependency, 2 tenant), number of charges, then row and
--       unit (0 none) each; number of units, then the cost of each; 1 or 0: minima follow, one per unit
--       then items until the end, by their first value (hash is 0 where no limit is the tenant's):
--       r  count, shape, hash                              that many plain takes
--       k  shape, hash, id, key, fingerprint, key ttl ms, settle within us (-1 none), wait us (-1: take), dry, tenant,
--          class                                           a take or reserve that leaves something behind
--       g  count                                           the next so many k succeed together or not at all
--       v  shape, hash                                     view
--       u  shape, hash, id, slot, amount of each unit      undo a take
--       s l x c  shape, hash, id, then s: real cost of each unit (-1 as estimated), x: us   settle release extend cancel
-- Returns {"policy"}: none installed; {"changed", version}; {"late"}: a later call of the same reply key has run;
--       {"stale", TIME}: a quota's windows do not hold TIME;
--       {"ok", TIME, dependency time, then per item}. Durations in microseconds, -1 never:
--       0 start in, end in, amount of each unit, per charge: left, reset, wait     admitted
--       1 available in, retry in, index of the blocking charge (-1 none), per charge: left, reset, wait   refused
--       2 remembered answer   3 key was used for another ask   4 no such grant   5 too late
--       6 aborted             7 done: s: replayed, difference of each unit; x: end in; l c: replayed
--       8 count, m, per charge: level, reset                                       a run of so many plain takes, of which
--         where m < count: available in, retry in of the first, step, index of     the first m were admitted
--         the blocking charge, per charge: wait
--         level is what the limit held before the run, in its own measure: credits used, or what a window counts
--       9 what follows a 0, as one text
local version = open()
local prefix, number, reply_key = ARGV[2], ARGV[3], ARGV[4]
if number ~= '' then
  -- Before the version: what ran under another one must not run again.
  local raw = redis.call('GET', reply_key)
  if raw then
    local n, reply = string.match(raw, '^(%d+) (.*)$')
    if n == number then
      return cjson.decode(reply)
    elseif tonumber(n) > tonumber(number) then
      return {'late'} -- its caller has gone on without it
    end
  end
end
if not version then
  return {'policy'}
end
if ARGV[1] ~= '' and str(version) ~= ARGV[1] then
  return {'changed', str(version)}
end
