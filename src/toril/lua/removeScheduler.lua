#!lua flags=allow-oom
--[[
  removeScheduler: forget a scheduler, and its next iteration if that is still delayed.

  Keys      base, active, delayed, marker, meta, paused, events, repeat, scheduler
  Args      scheduler_id str
  Returns   1 when there was such a scheduler, else 0
  Emits     removed
  Keeps     I1
  Cost      O(1)
]]
local base, active, delayed, marker, meta, paused, events, repeat_, scheduler = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/lanes"
--- @include "includes/deleteJob"

local queue = queueAt(base)

local function takeOutPending(pending)
  if redis.call("ZREM", delayed, pending) == 1 then return true end
  local lane = takeDelayedInLane(queue, pending)
  if lane then
    dropKept(queue, pending)
    releaseLane(queue, lane, pending)
  end
  return lane ~= nil
end

local at = redis.call("ZSCORE", repeat_, a.scheduler_id)
if at then
  local pending = "repeat:" .. a.scheduler_id .. ":" .. at
  if takeOutPending(pending) then
    deleteJob(base .. ":" .. pending)
    emit(queue, "removed", "jobId", pending, "prev", "delayed")
  end
end
local was_indexed = redis.call("ZREM", repeat_, a.scheduler_id) == 1
local was_stored = redis.call("DEL", scheduler) == 1
return (was_indexed or was_stored) and 1 or 0
