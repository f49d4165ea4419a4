#!lua flags=allow-oom
--[[
  addLog: append a row to a job's log, keeping the last ones only if asked.

  Keys      base, job, logs
  Args      row str, keep int?, token str?, resend bool? (a row that is the last one already was
            appended by the call whose reply was lost)
  Returns   how many rows there are
  Refuses   -1  the job does not exist                                    JobNotFoundError
            -2  its lock has expired                                      LockLostError
            -6  another worker holds its lock                             LockLostError
  Keeps     I2, I8
  Cost      O(1)
]]
local base, job, logs = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/refuseStranger"

if redis.call("EXISTS", job) == 0 then return -1 end
if a.token then
  local refusal = refuseStranger(job, a.token)
  if refusal then return refusal end
end
if a.resend and redis.call("LINDEX", logs, -1) == a.row then return redis.call("LLEN", logs) end
local count = redis.call("RPUSH", logs, a.row)
if a.keep and count > a.keep then
  redis.call("LTRIM", logs, -a.keep, -1)
  return a.keep
end
return count
