#!lua flags=no-writes
--[[
  clock: the time of the server, which decides what is due.

  Keys      base
  Args      none
  Returns   now ms
  Cost      O(1)
]]
local base = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/clock"

return clock()
