#!lua flags=allow-oom
--[[
  update: replace one field of a job: its data or its progress.

  A worker passes its token and is refused when it lost the job; others pass none.

  Keys      base, meta, events, job
  Args      field str ("data" or "progress"), id str, token str?
            After the map, raw: the new value as JSON.
  Returns   0
  Refuses   -1  the job does not exist                                    JobNotFoundError
            -2  its lock has expired                                      LockLostError
            -6  another worker holds its lock                             LockLostError
  Emits     progress
  Keeps     I2
  Cost      O(1)
]]
local base, meta, events, job = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/refuseStranger"

local queue = queueAt(base)
local value = ARGV[2]
if redis.call("EXISTS", job) == 0 then return -1 end
if a.token then
  local refusal = refuseStranger(job, a.token)
  if refusal then return refusal end
end
redis.call("HSET", job, a.field, value)
if a.field == "progress" then
  emitTrimmed(queue, readGate(queue), "progress", "jobId", a.id, "data", value)
end
return 0
