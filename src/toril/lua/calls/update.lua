--[[
  update: replace one field of a job: its data or its progress.

  A worker passes its token and is refused if it has lost the job; others pass none.

  Keys      base, meta, events, job
  Args      field str ("data" or "progress"), id str, token str?
            After the map, raw: the new value as JSON.
  Returns   0
  Refuses   MISSING             the job does not exist   JobNotFoundError
            LOCK_EXPIRED        its lock has expired   LockLostError
            LOCK_TAKEN          another worker holds its lock   LockLostError
  Emits     progress
  Keeps     I2
  Flags     allow-oom
  Cost      O(1)
]]
function calls.update(KEYS, a, ARGV)
  local base, meta, events, job = unpack(KEYS)
  local queue = queues.at(base)
  local value = ARGV[2]
  if redis.call("EXISTS", job) == 0 then return refusals.MISSING end
  if a.token then
    local refusal = locks.refuse(job, a.token)
    if refusal then return refusal end
  end
  redis.call("HSET", job, a.field, value)
  if a.field == "progress" then
    journal.emitTrimmed(queue, gates.read(queue), "progress", "jobId", a.id, "data", value)
  end
  return 0
end
