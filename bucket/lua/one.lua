-- Part 1 of decide, one bucket: a single run of asks of a bucket of the whole dependency.
--
-- It is what a caller meets who asks alone, and then the time of the script is the time of the answer: no functions, no
-- tables but the reply, three commands besides those of open. What differs in any way is for the short way, which comes next.
if number == '' and #ARGV == 31 and ARGV[5] == '1' and ARGV[6] == '1' and ARGV[7] == '0' and ARGV[10] == '0' and
  ARGV[20] == '1' and ARGV[22] == '1' and ARGV[25] == '1' and ARGV[27] == '0' and ARGV[28] == 'r' then
  local raw = redis.call('HGET', KEYS[2], ARGV[8])
  if raw then
    local a, b, n0, p0, lows, next_at = string.match(raw, '^(%d+) (%d+) (%d+) (%d+) (%S+) (%d+)$')
    if n0 == ARGV[16] and p0 == ARGV[17] then
      local used, dt, n, p, count = tonumber(a), now - b, tonumber(n0), tonumber(p0), tonumber(ARGV[29])
      if used > 0 and dt > 0 then
        used = dt >= ceil_div(used, n) and 0 or used - n * dt
      end
      local now_text = str(now)
      if used == 0 then
        lows, next_at = now_text .. ':0', '0'
      end
      local cost, room = ARGV[26] * p, ARGV[12] * p - used
      if cost > 0 and cost <= ARGV[12] * p then
        local m = max(0, min(count, floor(room / cost)))
        local out = {'ok', str(real), now_text, 8, count, m, used, 0}
        if m < count then -- as short_refuse has it
          local wait = ceil_div((m + 1) * cost - room, n)
          local fit = ceil_div(wait, 1000) * 1000
          local most, step = fit + SPREAD_MAX, math.ceil(ARGV[26] * ARGV[14] / ARGV[13])
          local back = max(fit, min(next_at - now, most))
          out[9], out[10], out[11], out[12], out[13] = fit, back, step, 0, wait
          next_at = str(now + min(back + (count - m) * step, most))
        end
        if m > 0 then
          lows = lows_push(lows, now, used)
        end
        redis.call('HSET', KEYS[2], ARGV[8],
          str(used + m * cost) .. ' ' .. now_text .. ' ' .. n0 .. ' ' .. p0 .. ' ' .. lows .. ' ' .. next_at)
        redis.call('HSET', meta, 'clk', str(offset) .. ' ' .. now_text)
        return out
      end
    end
  end
end
