#!lua flags=allow-oom
--[[
  retry: let one finished job run again.

  Keys      base, wait, paused, active, prioritized, pc, completed, failed, marker, meta, events
  Args      id str, call str, resets_attempts bool, force bool?
  Returns   0
  Refuses   -1  the job does not exist                                    JobNotFoundError
            -3  it is not finished                                        JobNotInStateError
            -132  its group is over, being undone or counts it as done    InvalidGroupStateError
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

local queue = queueAt(base)
if wasMade(queue, a.call) then return 0 end
if redis.call("EXISTS", base .. ":" .. a.id) == 0 then return -1 end
local job = base .. ":" .. a.id
local membership = not a.force and redis.call("HGET", job, "x.group")
if membership and (redis.call("ZSCORE", completed, a.id) or groupStateOf(membership, job) ~= "ACTIVE") then
  return -132
end
local state = "failed"
if redis.call("ZREM", failed, a.id) == 0 then
  state = "completed"
  if redis.call("ZREM", completed, a.id) == 0 then return -3 end
end
rememberCall(queue, a.call)
local gate = readGate(queue)
retryJob(queue, gate, a.id, state, a.resets_attempts)
wake(queue, gate)
return 0
