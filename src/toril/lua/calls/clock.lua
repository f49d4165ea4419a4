--[[
  clock: the server's time, which decides what is due.

  Keys      base
  Args      none
  Returns   now ms
  Flags     no-writes
  Cost      O(1)
]]
function calls.clock(KEYS, a, ARGV)
  local base = unpack(KEYS)
  return clock.now()
end
