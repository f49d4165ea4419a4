--[[
  count: how many jobs are in each state, at one moment.

  Keys      base
  Args      in_transit bool? (also count those that are on their way to another slot)
  Returns   the lengths of wait, paused, active, prioritized, delayed, waiting_children, completed,
            failed, lanes_waiting, lanes_delayed, and of those in transit if asked
  Flags     no-writes
  Cost      O(1)
]]
function calls.count(KEYS, a, ARGV)
  local base = unpack(KEYS)
  local counts = places.counts(queues.at(base))
  if a.in_transit then counts[#counts + 1] = redis.call("HLEN", base .. ":toril:in-transit") end
  return counts
end
