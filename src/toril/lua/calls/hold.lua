--[[
  hold: let nobody take jobs from the queue for a while.

  Keys      base, limiter, meta
  Args      duration_ms int
  Returns   0
  Flags     allow-oom
  Cost      O(1)
]]
function calls.hold(KEYS, a, ARGV)
  local base, limiter, meta = unpack(KEYS)
  gates.hold(queues.at(base), {}, a.duration_ms)
  return 0
end
