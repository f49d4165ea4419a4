#!lua flags=allow-oom
--[[
  retry: let one finished job run again.

  Keys      base, wait, paused, active, prioritized, pc, completed, failed, marker, meta, events
  Args      id str, call str, resets_attempts bool, force bool?
  Returns   0
  Refuses   -1  the job does not exist                                    JobNotFoundError
            -3  it is not finished                                        JobNotInStateError
            -132  its group is over or being undone                       InvalidGroupStateError
  Emits     waiting
  Keeps     I1
  Cost      O(1)
]]
local base, wait, paused, active, prioritized, pc, completed, failed, marker, meta, events = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/calls"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/lanes"
--- @include "includes/retryJob"
--- @include "includes/groups"

local queue = queueAt(base)
if wasMade(queue, a.call) then return 0 end
if redis.call("EXISTS", base .. ":" .. a.id) == 0 then return -1 end
local membership = redis.call("HGET", base .. ":" .. a.id, "x.group")
if membership and not a.force and groupStateOf(membership) ~= "ACTIVE" then return -132 end
local state = "failed"
if redis.call("ZREM", failed, a.id) == 0 then
  state = "completed"
  if redis.call("ZREM", completed, a.id) == 0 then return -3 end
end
rememberCall(queue, a.call)
local gate = readGate(queue)
retryJob(queue, gate, a.id, state, a.resets_attempts, a.force)
wake(queue, gate)
return 0
