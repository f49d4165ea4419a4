--[[
  addLog: append a row to a job's log, and keep only the last rows if asked.

  Keys      base, job, logs
  Args      row str, keep int?, token str?, resend bool? (if the row is already the last one, the
            call whose reply was lost appended it)
  Returns   how many rows there are
  Refuses   MISSING             the job does not exist   JobNotFoundError
            LOCK_EXPIRED        its lock has expired   LockLostError
            LOCK_TAKEN          another worker holds its lock   LockLostError
  Keeps     I2, I8
  Flags     allow-oom
  Cost      O(1)
]]
function calls.addLog(KEYS, a, ARGV)
  local base, job, logs = unpack(KEYS)
  if redis.call("EXISTS", job) == 0 then return refusals.MISSING end
  if a.token then
    local refusal = locks.refuse(job, a.token)
    if refusal then return refusal end
  end
  if a.resend and redis.call("LINDEX", logs, -1) == a.row then return redis.call("LLEN", logs) end
  local count = redis.call("RPUSH", logs, a.row)
  if a.keep and count > a.keep then
    redis.call("LTRIM", logs, -a.keep, -1)
    return a.keep
  end
  return count
end
