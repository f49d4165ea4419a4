#!lua flags=allow-oom
--[[
  changeDelay: put a delayed job off until another time, counted from now.

  Keys      base, delayed, marker, meta, paused, events, job
  Args      id str, call str, delay_ms int
  Returns   0
  Refuses   -1  the job does not exist                                    JobNotFoundError
            -3  it is not delayed                                         JobNotInStateError
  Emits     delayed
  Keeps     I1
  Cost      O(log delayed jobs)
]]
local base, delayed, marker, meta, paused, events, job = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/calls"
--- @include "includes/clock"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/lanes"

local queue = queueAt(base)
if wasMade(queue, a.call) then return 0 end
if redis.call("EXISTS", job) == 0 then return -1 end
local due = clock() + a.delay_ms
if redis.call("ZREM", delayed, a.id) == 1 then
  placeDelayed(queue, a.id, due)
  wakeWhenDue(queue)
else
  local lane, mark = takeDelayedInLane(queue, a.id)
  if not lane then return -3 end
  putAside(queue, laneOf(lane), laneMember(lane, a.id, mark), due)
  wakeLanesWhenDue(queue)
end
rememberCall(queue, a.call)
redis.call("HSET", job, "delay", a.delay_ms)
emitTrimmed(queue, readGate(queue), "delayed", "jobId", a.id, "delay", due)
return 0
