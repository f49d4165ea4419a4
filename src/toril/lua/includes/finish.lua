--- @include "includes/deadLetter"
--- @include "includes/groups"
--- @include "includes/openEnd"

--- What has to be known of a job to end it, or nothing when it does not exist.
local function readEnding(job)
  local hash = redis.call("HMGET", job, "name", "atm", "parentKey", "deid", "x.group", "x.lane")
  if not hash[1] then return nil end
  return {
    name = hash[1],
    attempts_made = tonumber(hash[2]) or 0,
    parent_key = hash[3],
    parent = hash[3] and redis.call("HGET", job, "parent"),
    deduplication_id = hash[4],
    group = hash[5],
    lane = hash[6]
  }
end

--- End a job that is out of `active` already: its parent, its deduplication id, its place among the
--- finished, its events, the metrics, its group.
--- `ended` = { id, state = "completed"|"failed", value, keep, attempts, batch, previous }; `value` is the
--- return value as JSON or the reason as text, and is never decoded. `previous` names the place of a
--- job that ends without having run; `released` the locks that the call is about to give back.
--- `known` is what readEnding gave. `on_exhausted` is what becomes of its lane.
--- A failed job with a `trouble` and `dead_letters` moves there instead of to `failed`; its id there is
--- returned.
local function finishJob(queue, gate, ended, known, points, now)
  local id, state, value = ended.id, ended.state, ended.value
  local job = queue.base .. ":" .. id
  local attempts_made = known.attempts_made + (ended.previous and 0 or 1)

  if known.lane then
    if ended.on_exhausted == "halt" or ended.on_exhausted == "divert" then
      haltLane(queue, known.lane, id, now)
      if ended.on_exhausted == "divert" and ended.dead_letters then
        beginDiversion(queue, known.lane, id, ended.dead_letters.name)
      end
    end
    if ended.batch then
      ended.batch.lanes[#ended.batch.lanes + 1] = { known.lane, id }
    else
      releaseLane(queue, known.lane, id)
    end
  end
  if known.deduplication_id then
    releaseDeduplication(queue, gate, id, known.deduplication_id, now)
  end
  if known.parent_key then
    local parent = parentOf(known.parent_key, known.parent)
    if state == "completed" then
      childCompleted(parent, job, value, now)
    else
      childFailed(parent, job, value, now)
    end
  end

  local keep = ended.keep
  local started, trouble, is_open = not ended.previous, ended.trouble, false
  if known.group and state == "failed" then
    local run = redis.call("HMGET", job, "ats", "x.lost", "defa")
    started = started or run[1] ~= false
    is_open = isOpenEnd(run[1], run[2], run[3])
    if wasCancelled(known.group, job, run[3]) then
      keep, trouble = { count = 0 }, nil
    end
  end
  local letter_id = trouble and deadLetter(queue, ended.dead_letters, ended, known)
  local is_moved = letter_id and not trouble.stacktrace
  if is_moved and not known.parent_key and not known.group then
    local moved = ended.dead_letters.moved
    moved[#moved + 1] = job
  elseif is_moved or keep and keep.count == 0 then
    if known.parent_key then unlinkFromParent(job, known.parent_key, known.parent) end
    deleteJob(job)
  else
    if ended.batch and not keep then
      local completed = ended.batch.completed
      completed[#completed + 1], completed[#completed + 2] = stamp(now), id
    else
      redis.call("ZADD", queue[state], stamp(now), id)
    end
    if state == "completed" then
      redis.call("HSET", job, "atm", digits(attempts_made), "returnvalue", value, "finishedOn",
        stamp(now))
    else
      redis.call("HSET", job, "atm", digits(attempts_made), "failedReason", value, "finishedOn",
        stamp(now))
      redis.call("HDEL", job, "defa", "x.cancel")
    end
    if keep then
      retain(queue, queue[state], keep, now)
    end
  end

  if state == "completed" then
    emit(queue, "completed", "jobId", id, "returnvalue", value, "prev", "active")
  else
    emit(queue, "failed", "jobId", id, "failedReason", value, "prev", ended.previous or "active")
    if not ended.previous and attempts_made >= (ended.attempts or 0) then
      emit(queue, "retries-exhausted", "jobId", id, "attemptsMade", digits(attempts_made))
    end
  end
  if points then
    countFinish(queue, state, points, now)
  end
  if letter_id then
    emit(queue, "deadLettered", "jobId", id, "queue", ended.dead_letters.source,
      "deadLetterQueue", ended.dead_letters.name, "failedReason", value, "deadLetterJobId", letter_id)
    if points then
      countFinish(queue, "deadLettered", points, now)
    end
  end
  if known.group then
    groupOnSettled(known.group, job, state,
      { id = id, value = value, started = started, is_open = is_open, released = ended.released,
        letter = letter_id and ended.dead_letters.prefix .. letter_id }, now)
  end
  return letter_id
end
