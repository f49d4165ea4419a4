--- End a job that is out of `active` already: its parent, its deduplication id, its place among the
--- finished, its events, the metrics.
--- `ended` = { id, state = "completed"|"failed", value, keep, attempts }; `value` is the return value
--- as JSON or the reason as text, and is never decoded.
local function finishJob(queue, gate, ended, points, now)
  local id, state, value = ended.id, ended.state, ended.value
  local job = queue.base .. ":" .. id
  local known = redis.call("HMGET", job, "parentKey", "parent", "deid", "atm")
  local attempts_made = (tonumber(known[4]) or 0) + 1

  if known[3] then
    releaseDeduplication(queue, gate, id, known[3], now)
  end
  if known[1] and known[2] then
    local parent = parentOf(known[1], known[2])
    if state == "completed" then
      childCompleted(parent, job, value, now)
    else
      childFailed(parent, job, value, now)
    end
  end

  local keep = ended.keep
  if keep and keep.count == 0 then
    unlinkFromParent(job, known[1], known[2])
    deleteJob(job)
  else
    redis.call("ZADD", queue[state], now, id)
    if state == "completed" then
      redis.call("HSET", job, "atm", attempts_made, "returnvalue", value, "finishedOn", now)
    else
      redis.call("HSET", job, "atm", attempts_made, "failedReason", value, "finishedOn", now)
      redis.call("HDEL", job, "defa")
    end
    if keep then
      retain(queue, queue[state], keep, now)
    end
  end

  if state == "completed" then
    emit(queue, "completed", "jobId", id, "returnvalue", value, "prev", "active")
  else
    emit(queue, "failed", "jobId", id, "failedReason", value, "prev", "active")
    if attempts_made >= (ended.attempts or 0) then
      emit(queue, "retries-exhausted", "jobId", id, "attemptsMade", attempts_made)
    end
  end
  if points then
    countFinish(queue, state, points, now)
  end
end
