--[[
  setLimits: change how much may run at once or in a period, and wake a worker for what may run now.

  Keys      base, wait, paused, active, prioritized, marker, limiter, meta
  Args      set list of str (fields of `meta` and their values, in turn), remove list of str,
            starts_anew bool (forget how many jobs were started in this window, and a hold by hand)
  Returns   0
  Flags     allow-oom
  Cost      O(1)
]]
function calls.setLimits(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, marker, limiter, meta = unpack(KEYS)
  local queue = queues.at(base)
  if #a.set > 0 then redis.call("HSET", meta, unpack(a.set)) end
  if #a.remove > 0 then redis.call("HDEL", meta, unpack(a.remove)) end
  if a.starts_anew then
    redis.call("DEL", limiter)
    redis.call("HDEL", meta, "x.held")
  end
  if redis.call("LLEN", wait) > 0 or redis.call("ZCARD", prioritized) > 0 then
    places.wake(queue, gates.read(queue))
  end
  return 0
end
