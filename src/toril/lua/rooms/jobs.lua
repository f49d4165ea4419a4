--- Delete everything of a job except its lock and its place.
function jobs.delete(job)
  redis.call("UNLINK", job, job .. ":logs", job .. ":dependencies", job .. ":processed",
    job .. ":failed", job .. ":unsuccessful")
end

--- The same for many jobs, in few calls.
function jobs.deleteAll(job_keys)
  local keys = {}
  for i, job in ipairs(job_keys) do
    local n = #keys
    keys[n + 1], keys[n + 2], keys[n + 3] = job, job .. ":logs", job .. ":dependencies"
    keys[n + 4], keys[n + 5], keys[n + 6] = job .. ":processed", job .. ":failed", job .. ":unsuccessful"
    if i % 500 == 0 or i == #job_keys then
      redis.call("UNLINK", unpack(keys))
      keys = {}
    end
  end
end

--- A group needs to know whether a member's last run has an unknown outcome: its process died, or it
--- was stopped in the middle. `x.lost` is the number of that start, as `ats` counts them.

function jobs.noteOpenEnd(job)
  redis.call("HSET", job, "x.lost", redis.call("HGET", job, "ats") or "1")
end

--- `started` and `lost` are the fields `ats` and `x.lost`. A doomed job has been taken once more, without
--- being run.
function jobs.isOpenEnd(started, lost, is_doomed)
  if not lost then return false end
  return tonumber(lost) >= (tonumber(started) or 0) - (is_doomed and 1 or 0)
end

local function add(record, name, value)
  if value then record[#record + 1], record[#record + 2] = name, value end
end

--- Write the hash of a new job; nothing else does. `job.more` are further fields and their values.
function jobs.write(key, job, data, opts, timestamp, delay)
  local priority = clock.digits(job.priority or 0)
  if not (job.place or job.parent_key or job.group or job.de or job.deid or job.rjk or job.due or job.more) then
    redis.call("HSET", key, "name", job.name, "data", data, "opts", opts, "timestamp", timestamp,
      "delay", delay, "priority", priority)
    return
  end
  local record = { "name", job.name, "data", data, "opts", opts, "timestamp", timestamp, "delay", delay,
    "priority", priority }
  if job.parent_key then
    add(record, "parentKey", job.parent_key)
    add(record, "parent", job.parent)
  end
  add(record, "x.group", job.group)
  add(record, "x.lane", job.place)
  add(record, "deid", job.deid or job.de and job.de.id)
  add(record, "rjk", job.rjk)
  add(record, "x.due", job.due and clock.digits(job.due))
  if job.more then
    for _, word in ipairs(job.more) do record[#record + 1] = word end
  end
  redis.call("HSET", key, unpack(record))
end

--- How long a new job is delayed, and until when.
local function delayOf(job, order_ms, timestamp, now)
  local delay = job.run_at and math.max(0, job.run_at - now) or job.delay or 0
  local due = job.run_at or timestamp + delay
  if job.ordering_delay then
    -- Wait for late jobs with an earlier order; a client's clock may be fast by at most the window.
    due = math.max(due, math.min(order_ms, now + job.ordering_delay) + job.ordering_delay)
    delay = math.max(0, due - now)
  end
  return delay, due
end

--- Note when it could first run, if its options do not tell: they have its delay, also that of a
--- scheduler's job, unless that of an earlier life is there. What is in the hash is 0 once it has passed.
local function noteDue(job, due, timestamp)
  if job.ordering_delay or job.had_delay or job.run_at and not job.rjk then
    job.due = math.max(due, timestamp)
  end
end

--- Put a new job where it belongs.
local function placeNew(queue, gate, job, timestamp, due)
  if job.has_children then
    redis.call("ZADD", queue.waiting_children, timestamp, job.id)
  elseif job.place then
    lanes.add(queue, job.id, job.place, due)
  elseif due then
    places.delay(queue, job.id, due)
  else
    places.ready(queue, gate, job.id, job.priority or 0, job.lifo and "RPUSH" or "LPUSH")
  end
end

--- Announce a new job; returns its place as `jobs.insert` does.
local function announceNew(queue, gate, job, due)
  journal.emit(queue, "added", "jobId", job.id, "name", job.name)
  if job.has_children then
    journal.emitTrimmed(queue, gate, "waiting-children", "jobId", job.id)
    return "children"
  end
  if due then
    journal.emitTrimmed(queue, gate, "delayed", "jobId", job.id, "delay", due)
    return job.place and "lane" or "delayed"
  end
  journal.emitTrimmed(queue, gate, "waiting", "jobId", job.id)
  return job.place and "lane" or "ready"
end

--- Write a new job and put it where it belongs: every way in ends here, except for dead letters, whose
--- places are written for a whole call at once. Returns "ready", "delayed", "lane" or "children" for the
--- place, so that the caller wakes workers once for many jobs; or nothing and the id of the job that
--- owns its deduplication id. A job with `deid` already owns that id; `rjk` names its scheduler.
function jobs.insert(queue, gate, job, data, opts, now)
  local timestamp, order_ms = job.timestamp or now, job.order_ms or now
  local delay, due = 0, timestamp
  if job.delay or job.run_at or job.ordering_delay then
    delay, due = delayOf(job, order_ms, timestamp, now)
  end
  if job.de then
    local owner = deduplication.claim(queue, gate, job.de, { id = job.id, name = job.name,
      data = data, opts = opts, delay = delay, due = due, job = job, order_ms = order_ms })
    if owner then return nil, owner end
  end
  noteDue(job, due, timestamp)
  local put_off = delay > 0 and due or nil
  -- Its place first: if that key is damaged, the script ends here, before there is a job that
  -- exists but will never run.
  job.place = job.lane and lanes.newPlace(queue, job.lane, order_ms)
  placeNew(queue, gate, job, timestamp, put_off)
  local key = queue.base .. ":" .. job.id
  jobs.write(key, job, data, opts, clock.stamp(timestamp), clock.digits(delay))
  if job.parent_key and not parcels.isAway(job.parent_key) then
    redis.call("SADD", job.parent_key .. ":dependencies", key)
  end
  return announceNew(queue, gate, job, put_off)
end

--- What must be known about a job to end it, or nothing if it does not exist.
function jobs.readEnding(job)
  local name, atm, parent_key, deid, group, lane =
    hashes.values(job, "name", "atm", "parentKey", "deid", "x.group", "x.lane")
  if not name then return nil end
  return {
    name = name,
    attempts_made = tonumber(atm) or 0,
    parent_key = parent_key,
    parent = parent_key and redis.call("HGET", job, "parent"),
    deduplication_id = deid,
    group = group,
    lane = lane
  }
end

--- Release its lane: immediately, or together with the lanes of the whole batch.
local function leaveLane(queue, ended, known, now)
  if ended.on_exhausted == "halt" or ended.on_exhausted == "divert" then
    lanes.halt(queue, known.lane, ended.id, now)
    if ended.on_exhausted == "divert" and ended.dead_letters then
      lanes.divert(queue, known.lane, ended.id, ended.dead_letters.name)
    end
  end
  if ended.batch then
    ended.batch.lanes[#ended.batch.lanes + 1] = { known.lane, ended.id }
  else
    lanes.release(queue, known.lane, ended.id)
  end
end

--- What a group needs to know about a member's last run. A cancelled member leaves nothing behind.
local function lastRun(job, ended, known)
  if ended.state ~= "failed" then return { started = true, is_open = false } end
  local run = hashes.read(job, "ats", "x.lost", "defa")
  if groups.wasCancelled(known.group, job, run.defa) then
    ended.keep, ended.trouble = { count = 0 }, nil
  end
  return { started = not ended.previous or run.ats ~= false,
    is_open = jobs.isOpenEnd(run.ats, run["x.lost"], run.defa) }
end

--- Keep the job among the finished, or delete it, as its retention and its letter say.
local function keepOrDelete(queue, job, ended, known, attempts_made, now)
  local state, keep = ended.state, ended.keep
  local is_moved = ended.letter_id and not ended.trouble.stacktrace
  if is_moved and not known.parent_key then
    -- Deleted when all is written: if its group cannot be told, the letter is taken back.
    local moved = ended.dead_letters.moved
    moved[#moved + 1] = job
    return
  end
  if is_moved or keep and keep.count == 0 then
    -- A completed child is off its parent's list; in another slot this is not worth a second parcel.
    if known.parent_key and not (state == "completed" and parcels.isAway(known.parent_key)) then
      parents.unlink(job, known.parent_key, known.parent)
    end
    jobs.delete(job)
    return
  end
  if ended.batch and not keep then
    local completed = ended.batch.completed
    completed[#completed + 1], completed[#completed + 2] = clock.stamp(now), ended.id
  else
    redis.call("ZADD", queue[state], clock.stamp(now), ended.id)
  end
  redis.call("HSET", job, "atm", clock.digits(attempts_made),
    state == "completed" and "returnvalue" or "failedReason", ended.value, "finishedOn",
    clock.stamp(now))
  if state == "failed" then redis.call("HDEL", job, "defa", "x.cancel") end
  if keep then jobs.retain(queue, queue[state], keep, now) end
end

local function announceEnd(queue, ended, attempts_made)
  local id, value, dead_letters = ended.id, ended.value, ended.dead_letters
  if ended.state == "completed" then
    journal.emit(queue, "completed", "jobId", id, "returnvalue", value, "prev", "active")
    return
  end
  journal.emit(queue, "failed", "jobId", id, "failedReason", value, "prev", ended.previous or "active")
  if not ended.previous and attempts_made >= (ended.attempts or 0) then
    journal.emit(queue, "retries-exhausted", "jobId", id, "attemptsMade", clock.digits(attempts_made))
  end
  if ended.letter_id then
    journal.emit(queue, "deadLettered", "jobId", id, "queue", dead_letters.source, "deadLetterQueue",
      dead_letters.name, "failedReason", value, "deadLetterJobId", ended.letter_id)
  end
end

--- End a job that has already left `active`: every way out ends here. Returns the id of the dead letter
--- that it became, if any.
--- `ended` = { id, state = "completed"|"failed", value, keep, attempts, batch, previous }; `value` is the
--- return value as JSON or the reason as text, and is never decoded. `previous` names the place of a
--- job that ends without having run; `released` the locks that the call is about to release.
--- `known` is what jobs.readEnding returned. `on_exhausted` is what happens to its lane.
--- A failed job with a `trouble` and `dead_letters` moves there instead of to `failed`.
function jobs.finish(queue, gate, ended, known, points, now)
  local job = queue.base .. ":" .. ended.id
  local attempts_made = known.attempts_made + (ended.previous and 0 or 1)
  if known.lane then leaveLane(queue, ended, known, now) end
  if known.deduplication_id then
    deduplication.release(queue, gate, ended.id, known.deduplication_id, now)
  end
  if known.parent_key then
    parents.childEnded(known.parent_key, known.parent, job, ended.state, ended.value, now)
  end
  local run = known.group and lastRun(job, ended, known)
  local told = run and parcels.isAway(known.group) and redis.call("HGET", job, "x.toldGroup")
  if ended.trouble then ended.letter_id = burials.bury(queue, ended.dead_letters, ended, known) end
  keepOrDelete(queue, job, ended, known, attempts_made, now)
  announceEnd(queue, ended, attempts_made)
  if points then
    metrics.count(queue, ended.state, points, now)
    if ended.letter_id then metrics.count(queue, "deadLettered", points, now) end
  end
  if run then
    groups.onSettled(known.group, job, ended.state,
      { id = ended.id, value = ended.value, started = run.started, is_open = run.is_open,
        released = ended.released, told = told,
        letter = ended.letter_id and ended.dead_letters.prefix .. ended.letter_id }, now)
  end
  return ended.letter_id
end

--- Tell the group of a job that it was removed: it is cancelled, unless a worker that knows of no groups
--- had ended it and nobody has looked since. `known` is what was read of its hash.
local function tellRemoved(job, id, known, was_active)
  local ended = endings.ofRemoved(id, known) or { id = id, state = "cancelled", value = "removed",
    started = known.ats ~= false,
    is_open = was_active or jobs.isOpenEnd(known.ats, known["x.lost"], known.defa) }
  ended.told = known["x.toldGroup"]
  groups.onSettled(known["x.group"], job, ended.state, ended, clock.now())
end

--- Remove a job that is no longer in any container: from its parent, its deduplication id, its
--- group, its keys.
--- Everything that removes a job that has not just finished comes through here. `how` may say:
---   is_hard             no event is written; a parent in the same queue that waited only for this child
---                       is removed with it, as in BullMQ's drain and clean
---   keeps_deduplication a retention: the id keeps its time to live
---   was_active          it was in `active`: nobody will be told how it ends
--- Returns whether there was such a job.
function jobs.remove(queue, id, how)
  local job = queue.base .. ":" .. id
  local known = hashes.read(job, "name", "parentKey", "parent", "deid", "x.group", "ats",
    "x.lane", "x.lost", "defa", "x.told", "x.toldGroup", "finishedOn", "returnvalue", "failedReason")
  if known.deid and not (how and how.keeps_deduplication) then
    deduplication.forget(queue, id, known.deid)
  end
  if known["x.lane"] and not (how and how.keeps_deduplication) then
    lanes.leave(queue, known["x.lane"], id)
  end
  jobs.delete(job)
  if known["x.group"] then tellRemoved(job, id, known, how and how.was_active) end
  local parent_key, parent_json = known.parentKey, known.parent
  if not parent_key or not parent_json then return known.name ~= false end
  local is_hard = how and how.is_hard
  if not is_hard or parcels.isAway(parent_key) then
    parents.unlink(job, parent_key, parent_json, is_hard or nil, known["x.told"])
    return true
  end
  if redis.call("SREM", parent_key .. ":dependencies", job) == 1 then
    local parent = parents.of(parent_key, parent_json)
    if parents.hasNoChildrenLeft(parent) then
      if parent.queue.base ~= queue.base then
        parents.releasePlainly(parent, true)
      elseif redis.call("ZREM", queue.waiting_children, parent.id) == 1 then
        jobs.remove(queue, parent.id, how)
      end
    end
  end
  return true
end

--- The same for one job of many: what it holds must not prevent the others from being removed.
function jobs.removeAny(queue, id, how)
  local is_removed, was_there = pcall(jobs.remove, queue, id, how)
  if is_removed then return was_there end
  jobs.delete(queue.base .. ":" .. id)
  return true
end

--- Let a job run again that has left `state`, completed or failed. Returns nothing for an id
--- without a job.
function jobs.retry(queue, gate, id, state, resets_attempts)
  local job = queue.base .. ":" .. id
  local known = hashes.read(job, "name", "priority", "parentKey", "parent", "opts", "x.lane", "x.group",
    "ats", "processedOn", "pb", "finishedOn", "x.ended", "x.attempts")
  if not known.name then return false end
  if known["x.group"] then groups.onRetried(known["x.group"], job, clock.now()) end
  local past = tries.past(known)
  if past then redis.call("HSET", job, "x.attempts", past) end
  redis.call("HDEL", job, "finishedOn", "processedOn", "defa", "x.cancel",
    state == "failed" and "failedReason" or "returnvalue")
  if resets_attempts then
    redis.call("HDEL", job, "atm", "ats")
  end
  -- One that has never started could not run while it had ended.
  if resets_attempts or not known.ats then
    redis.call("HSET", job, "x.due", clock.stamp(clock.now()))
  end
  parents.relink(job, known.parentKey, known.parent)
  local pending = redis.pcall("SCARD", job .. ":dependencies") -- or a key of another kind
  if type(pending) == "number" and pending > 0 then
    -- Children of it run again, or still run: it runs when they have ended, as it did the first time.
    redis.call("ZADD", queue.waiting_children, clock.stamp(clock.now()), id)
    journal.emitTrimmed(queue, gate, "waiting-children", "jobId", id, "prev", state)
    return true
  end
  if known["x.lane"] then
    lanes.enter(queue, known["x.lane"], id, laneNames.PLAIN)
  else
    local is_lifo = known.opts and string.find(known.opts, '"lifo":true', 1, true)
    places.ready(queue, gate, id, tonumber(known.priority) or 0, is_lifo and "RPUSH" or "LPUSH")
  end
  journal.emitTrimmed(queue, gate, "waiting", "jobId", id, "prev", state)
  return true
end

--- Remove old finished jobs as their retention asks, at most a thousand per call; the next finish
--- continues. No event is written for them.
local function removeFinished(queue, set, ids)
  if #ids == 0 then return end
  redis.call("ZREM", set, unpack(ids))
  for _, id in ipairs(ids) do
    jobs.removeAny(queue, id, { keeps_deduplication = true })
  end
end

function jobs.retain(queue, set, keep, now)
  if keep.age then
    local limit = math.max(math.min(keep.limit or 1000, 1000), 0)
    removeFinished(queue, set, redis.call("ZRANGEBYSCORE", set, 0, now - keep.age * 1000,
      "LIMIT", 0, limit))
  end
  if keep.count and keep.count > 0 then
    local excess = math.min(redis.call("ZCARD", set) - keep.count, 1000)
    if excess > 0 then
      removeFinished(queue, set, redis.call("ZRANGE", set, 0, excess - 1))
    end
  end
end
