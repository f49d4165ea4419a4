#!lua flags=allow-oom
--[[
  hold: let nobody take from the queue for a while.

  Keys      base, limiter, meta
  Args      duration_ms int
  Returns   0
  Cost      O(1)
]]
local base, limiter, meta = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/hold"

holdBack(queueAt(base), {}, a.duration_ms)
return 0
