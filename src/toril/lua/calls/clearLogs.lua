--[[
  clearLogs: forget a job's log, or all but its last rows.

  Keys      job, logs
  Args      keep int
  Returns   0
  Refuses   MISSING             the job does not exist   JobNotFoundError
  Flags     allow-oom
  Cost      O(removed rows)
]]
function calls.clearLogs(KEYS, a, ARGV)
  local job, logs = unpack(KEYS)
  if redis.call("EXISTS", job) == 0 then return refusals.MISSING end
  if a.keep == 0 then
    redis.call("UNLINK", logs)
  else
    redis.call("LTRIM", logs, -a.keep, -1)
  end
  return 0
end
