--- A job may hold anything, and others lie beside it in one call. What is done for one job of many is
--- done under `pcall`; if it fails, these say whether that job is the cause, and give it up alone.

local QUEUE_KEYS = { wait = "list", paused = "list", active = "list", prioritized = "zset",
  delayed = "zset", ["waiting-children"] = "zset", completed = "zset", failed = "zset",
  marker = "zset", stalled = "set", meta = "hash", id = "string", pc = "string", events = "stream",
  ["metrics:completed"] = "hash", ["metrics:failed"] = "hash", ["metrics:deadLettered"] = "hash",
  ["lanes:waiting"] = "zset", ["lanes:delayed"] = "zset", ["lanes:aside"] = "zset",
  ["lanes:held"] = "hash", ["lanes:ready"] = "zset", ["lanes:later"] = "zset",
  ["lanes:index"] = "zset", ["lanes:settings"] = "hash", ["lanes:diverting"] = "hash" }

--- Is each key of the queue itself of the kind that it should be?
function damage.isSound(queue)
  for name, kind in pairs(QUEUE_KEYS) do
    local found = redis.call("TYPE", queue.base .. ":" .. name).ok
    if found ~= "none" and found ~= kind then return false end
  end
  return true
end

--- The words of an error that `pcall` caught. It is raised again if the job is not to blame: the queue's
--- own keys are damaged, or the server does not let us do it.
function damage.of(queue, problem)
  local words = type(problem) == "table" and problem.err or tostring(problem)
  local code = string.match(words, "^(%u+) ")
  if code and code ~= "ERR" and code ~= "WRONGTYPE" and code ~= "CROSSSLOT" or not damage.isSound(queue) then
    error(problem, 0)
  end
  return words
end

--- Give up a job that is in no place any more, whatever it holds: it fails, and an event tells of it.
--- Where its key holds no hash there is no job, and the event is all.
function damage.abandon(queue, id, reason, now)
  local written = redis.pcall("HSET", queue.base .. ":" .. id, "failedReason", reason,
    "finishedOn", clock.stamp(now))
  if type(written) == "number" then redis.call("ZADD", queue.failed, clock.stamp(now), id) end
  journal.emit(queue, "failed", "jobId", id, "failedReason", reason, "prev", "active")
end
