#!lua flags=allow-oom
--[[
  clearLogs: forget a job's log, or all but its last rows.

  Keys      job, logs
  Args      keep int
  Returns   0
  Refuses   -1  the job does not exist                                    JobNotFoundError
  Cost      O(removed rows)
]]
local job, logs = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])

if redis.call("EXISTS", job) == 0 then return -1 end
if a.keep == 0 then
  redis.call("UNLINK", logs)
else
  redis.call("LTRIM", logs, -a.keep, -1)
end
return 0
