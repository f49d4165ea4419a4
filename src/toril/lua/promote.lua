#!lua flags=allow-oom
--[[
  promote: let one delayed job run now.

  Keys      base, wait, paused, active, prioritized, pc, delayed, marker, meta, events
  Args      id str, call str
  Returns   0
  Refuses   -1  the job does not exist                                    JobNotFoundError
            -3  it is not delayed                                         JobNotInStateError
  Emits     waiting
  Keeps     I1
  Cost      O(1)
]]
local base, wait, paused, active, prioritized, pc, delayed, marker, meta, events = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/calls"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/lanes"
--- @include "includes/promoteJob"

local queue = queueAt(base)
if wasMade(queue, a.call) then return 0 end
if redis.call("EXISTS", base .. ":" .. a.id) == 0 then return -1 end
local gate = readGate(queue)
if redis.call("ZREM", delayed, a.id) == 1 then
  promoteJob(queue, gate, a.id)
else
  local lane, mark = takeDelayedInLane(queue, a.id)
  if not lane then return -3 end
  promoteInLane(queue, gate, lane, a.id, mark)
end
rememberCall(queue, a.call)
wake(queue, gate)
return 0
