#!lua flags=allow-oom
--[[
  leave: a worker goes. Forget its last calls, and wake another worker if there is work: the marker
  may have been popped by the connection that is being closed.

  Keys      base, wait, active, prioritized, marker, meta, paused, replies
  Args      flights list of str
  Returns   0
  Cost      O(flights)
]]
local base, wait, active, prioritized, marker, meta, paused, replies = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/gate"
--- @include "includes/place"

local queue = queueAt(base)
redis.call("HDEL", replies, unpack(a.flights))
if redis.call("EXISTS", wait, prioritized, queue["lanes:ready"]) > 0 then
  wake(queue, readGate(queue))
end
return 0
