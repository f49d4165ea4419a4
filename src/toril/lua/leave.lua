#!lua flags=allow-oom
--[[
  leave: a worker goes. Forget its last calls, and wake another worker if there is work: the marker
  may have been popped by the connection that is being closed.

  Keys      base, wait, active, prioritized, marker, meta, paused, unacked
  Args      replies list of str (the keys under which its calls were remembered)
  Returns   0
  Cost      O(jobs of the last calls)
]]
local base, wait, active, prioritized, marker, meta, paused, unacked = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/gate"
--- @include "includes/place"

local queue = queueAt(base)
for _, reply in ipairs(a.replies) do
  local last = redis.call("GET", reply)
  if last then
    local taken = cmsgpack.unpack(last).taken
    if #taken > 0 then redis.call("SREM", unacked, unpack(taken)) end
    redis.call("DEL", reply)
  end
end
if redis.call("LLEN", wait) > 0 or redis.call("ZCARD", prioritized) > 0 then
  wake(queue, readGate(queue))
end
return 0
