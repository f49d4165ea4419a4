--- A job may hold anything, and one call handles many. What is done for one job of many is done under
--- `pcall`; if it fails, these functions say whether that job is the cause, and give up that job alone.

local QUEUE_KEYS = { wait = "list", paused = "list", active = "list", prioritized = "zset",
  delayed = "zset", ["waiting-children"] = "zset", completed = "zset", failed = "zset",
  marker = "zset", stalled = "set", meta = "hash", id = "string", pc = "string", events = "stream",
  ["metrics:completed"] = "hash", ["metrics:failed"] = "hash", ["metrics:deadLettered"] = "hash",
  ["lanes:waiting"] = "zset", ["lanes:delayed"] = "zset", ["lanes:aside"] = "zset",
  ["lanes:held"] = "hash", ["lanes:ready"] = "zset", ["lanes:later"] = "zset",
  ["lanes:index"] = "zset", ["lanes:settings"] = "hash", ["lanes:diverting"] = "hash" }

--- Does each of the queue's own keys have the right type? `names` are those that matter, unless all do.
function damage.isSound(queue, names)
  for name in pairs(names or QUEUE_KEYS) do
    local found = redis.call("TYPE", queue.base .. ":" .. name).ok
    if found ~= "none" and found ~= QUEUE_KEYS[name] then return false end
  end
  return true
end

--- The message of an error that `pcall` caught. It is raised again if the job is not to blame: the
--- queue's own keys are damaged, or the server does not permit the command.
function damage.of(queue, problem)
  local words = type(problem) == "table" and problem.err or tostring(problem)
  local code = string.match(words, "^(%u+) ")
  if code and code ~= "ERR" and code ~= "WRONGTYPE" and code ~= "CROSSSLOT" or not damage.isSound(queue) then
    error(problem, 0)
  end
  return words
end

--- Give up a job that is no longer in any place, whatever it holds: it fails, and an event says so.
--- If its key does not hold a hash, there is no job, and only the event is written.
function damage.abandon(queue, id, reason, now)
  local written = redis.pcall("HSET", queue.base .. ":" .. id, "failedReason", reason,
    "finishedOn", clock.stamp(now))
  if type(written) == "number" then redis.call("ZADD", queue.failed, clock.stamp(now), id) end
  journal.emit(queue, "failed", "jobId", id, "failedReason", reason, "prev", "active")
end
