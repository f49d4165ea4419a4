--[[
  count: how many jobs are in each state, at one moment.

  Keys      base
  Args      none
  Returns   the lengths of wait, paused, active, prioritized, delayed, waiting_children, completed,
            failed, lanes_waiting, lanes_delayed
  Flags     no-writes
  Cost      O(1)
]]
function calls.count(KEYS, a, ARGV)
  local base = unpack(KEYS)
  return places.counts(queues.at(base))
end
