--[[
  settle: record how some attempts ended, then take new jobs, in one call.

  Outcomes are independent: one that is refused changes nothing and does not affect the others.
  The last call of each flight is remembered in `replies`, so that a client whose reply was lost can
  ask again and get the same answer. A newer call of the flight shows that the reply was received.

  Keys      base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, failed,
            marker, stalled, limiter, meta, id, events, replies, dead_base, dead_wait, dead_paused,
            dead_active, dead_marker, dead_meta, dead_id, dead_events (the last eight only when a job
            goes to the dead letters)
  Args      outcomes list of {id, token, kind, keep, attempts, delay, lifo, counts, limit,
            lane_limit, skip, on_exhausted, begun, trouble, at, is_special, is_raw (the last four if it goes to the
            dead letters: the number of its trouble, when it was added, as text, whether it takes the
            long way, whether its data are not JSON)},
            troubles list of {name, made, attempts, keep, on_exhausted, stacktrace}? (what those that go
            to the dead letters have in common: rooms/burials.lua; `made` attempts of `attempts`),
            take int (how many jobs may be started), token str, lock_ms str (digits), name str?,
            limiter {max, duration}?, points int? (metrics), flight str, request str (sixteen digits),
            received list of {flight, request}?, dead_letters str? (the name of the queue that takes
            them), away str? (the base of that queue if it is in another slot), queue str? (this queue's
            name), keep_letters {count, age}? (in ms)
            After the map, raw, for each trouble: the reason, the metadata, the note. Then for each
            outcome in order: `completed` the return value; `failed`, `retry` and `delayed` the reason
            and the stack traces ("" for none), and nothing for one with a trouble.
  Returns   results (for each outcome 0, a refusal, or its id among the dead letters; for a damaged job
            a list), jobs, rate limit ms, next due ms, now ms
  Refuses   MISSING             the job does not exist   JobNotFoundError
            LOCK_EXPIRED        its lock has expired   LockLostError
            NOT_IN_STATE        it is not active   JobNotInStateError
            CHILDREN_PENDING    some of its children are pending   PendingChildrenError
            LOCK_TAKEN          another worker holds its lock   LockLostError
            CHILD_FAILED        one of its children failed   FailedChildrenError
            DAMAGED             it cannot be written, with the error message   DamagedJobError
            STALE               a newer request from this worker has been served   StaleRequestError
  Emits     completed, failed, retries-exhausted, deadLettered, added, delayed, waiting,
            waiting-children, active, drained
  Keeps     I1, I2, I3, I5, I6
  Flags     allow-oom
  Cost      O(outcomes + take), at most 200 delayed jobs and 100 of lanes let in, 1000 old ones removed per
            outcome; stops at half a megabyte of jobs (next due ms is then the current time)
]]
--- The last call of a flight, as it is remembered: its results, packed, followed by the sixteen digits
--- of its number. The next call needs only these digits.
local DIGITS = 16

local function remember(replies, a, results, taken, rate_limit_ms, next_due_ms, now)
  redis.call("HSET", replies, a.flight, cmsgpack.pack({ at = now, results = results, taken = taken,
    rate_limit_ms = rate_limit_ms > 0 and rate_limit_ms or nil,
    next_due_ms = next_due_ms > 0 and next_due_ms or nil }) .. a.request)
end

--- The answer to a call that is sent again: the results of the first one, and those of the jobs it took
--- that its worker still holds.
local function answerAgain(base, record, a, now)
  local last, taken_jobs = cmsgpack.unpack(record), {}
  parcels.recall()
  for _, id in ipairs(last.taken) do
    local job = base .. ":" .. id
    if redis.pcall("GET", job .. ":lock") == a.token then
      -- Most of the lock's time may have passed while nobody knew about the job.
      redis.call("PEXPIRE", job .. ":lock", a.lock_ms)
      taken_jobs[#taken_jobs + 1] = takes.readTaken(job, id)
    end
  end
  return { last.results, taken_jobs, last.rate_limit_ms or 0, last.next_due_ms or 0, now }
end

--- Note replies that are known to have arrived: the jobs they handed out need no second look.
local function noteReceived(replies, received)
  for _, call in ipairs(received) do
    local record = redis.call("HGET", replies, call[1])
    if record then
      if string.sub(record, -DIGITS) == call[2] then
        local last = cmsgpack.unpack(record)
        last.taken = {}
        redis.call("HSET", replies, call[1], cmsgpack.pack(last) .. call[2])
      end
    end
  end
end

--- Where this call's dead letters go, if it has any.
local function openLetters(work, dead_base)
  if not dead_base then return nil end
  local a, job_keys = work.a, {}
  for i, outcome in ipairs(a.outcomes) do
    if outcome.trouble then job_keys[#job_keys + 1] = work.batch.jobs[i] end
  end
  local dead_letters = burials.open(dead_base, a.dead_letters, a.queue, job_keys,
    work.batch.has_children, work.troubles, work.now)
  dead_letters.keep = a.keep_letters
  return dead_letters
end

--- Everything that the outcomes of this call have in common. `payload` is the number of the next word
--- that belongs to an outcome.
local function begin(queue, a, ARGV, dead_base, now)
  local troubles = a.troubles or {}
  for i, trouble in ipairs(troubles) do
    trouble.reason, trouble.metadata, trouble.note = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
  end
  local gate = gates.read(queue)
  local work = { queue = queue, gate = gate, a = a, words = ARGV, now = now, troubles = troubles,
    payload = 2 + 3 * #troubles, batch = batches.read(queue, gate, a.outcomes), has_finished = false }
  work.dead_letters = openLetters(work, dead_base)
  return work
end

--- The reason and the stack traces that come with a failed attempt.
local function nextFailure(work)
  local first = work.payload
  work.payload = first + 2
  return work.words[first], work.words[first + 1]
end

local function writeFailure(job, reason, stacktrace)
  if reason ~= "" then
    redis.call("HSET", job, "failedReason", reason, "stacktrace", stacktrace)
  end
end

--- A damaged number starts again from zero: refusing it here would leave the job half-settled.
local function countOf(made)
  return clock.digits((tonumber(made) or 0) + 1)
end

--- Take the job out of `active` and end it. `how` is passed to jobs.finish.
local function finish(work, i, outcome, known, how)
  local refusal = batches.leave(work.queue, work.batch, i, outcome)
  if refusal then return refusal end
  work.has_finished = true
  if how.stacktrace then
    redis.call("HSET", work.batch.jobs[i], "stacktrace", how.stacktrace)
  end
  return jobs.finish(work.queue, work.gate, how, known, work.a.points, work.now) or 0
end

--- What to do for each kind of outcome: returns 0, a refusal, or the id of a dead letter.
local settle = {}

function settle.completed(work, outcome, i, job)
  local value = work.words[work.payload]
  work.payload = work.payload + 1
  local known = jobs.readEnding(job)
  if not known then return refusals.MISSING end
  if work.batch.has_children then
    if redis.call("SCARD", job .. ":dependencies") > 0 then return refusals.CHILDREN_PENDING end
    if redis.call("ZCARD", job .. ":unsuccessful") > 0 then return refusals.CHILD_FAILED end
  end
  return finish(work, i, outcome, known,
    { id = outcome.id, released = work.batch.locks, state = "completed", value = value,
      keep = outcome.keep, batch = work.batch })
end

function settle.failed(work, outcome, i, job)
  local trouble = outcome.trouble and work.troubles[outcome.trouble]
  local letter_id = trouble and burials.buryPlainly(work.queue, work.dead_letters, work.batch, i,
    outcome, trouble, work.a.points, work.now)
  if letter_id then
    work.has_finished = work.has_finished or type(letter_id) == "string"
    return letter_id
  end
  local how, reason, stacktrace
  if trouble then
    how, reason, stacktrace = trouble, trouble.reason, trouble.stacktrace
  else
    how, reason, stacktrace = outcome, nextFailure(work)
  end
  local known = jobs.readEnding(job)
  if not known then return refusals.MISSING end
  return finish(work, i, outcome, known, { id = outcome.id, released = work.batch.locks,
    state = "failed", value = reason, keep = how.keep, attempts = how.attempts, trouble = trouble,
    is_raw = outcome.is_raw, stacktrace = stacktrace, dead_letters = work.dead_letters,
    on_exhausted = how.on_exhausted })
end

--- A member whose group is being undone is not tried again: it has failed for good.
local function giveUp(work, outcome, i, job, reason, stacktrace)
  local is_silent = reason == ""
  -- It would have been tried again, so its attempts are not exhausted.
  return finish(work, i, outcome, jobs.readEnding(job), { id = outcome.id,
    released = work.batch.locks, state = "failed", attempts = math.huge,
    value = is_silent and "its group is being undone" or reason,
    stacktrace = not is_silent and stacktrace or nil })
end

function settle.retry(work, outcome, i, job)
  local queue, gate = work.queue, work.gate
  local reason, stacktrace = nextFailure(work)
  local known = hashes.read(job, "name", "priority", "x.group", "x.lane", "atm", "ats")
  if not known.name then return refusals.MISSING end
  if known["x.group"] and groups.stateOf(known["x.group"], job) ~= "ACTIVE" then
    return giveUp(work, outcome, i, job, reason, stacktrace)
  end
  local refusal = batches.leave(queue, work.batch, i, outcome)
  if refusal then return refusal end
  writeFailure(job, reason, stacktrace)
  places.promoteDue(queue, gate, work.now)
  if known["x.lane"] then
    lanes.giveBack(queue, known["x.lane"], outcome.id)
  else
    places.ready(queue, gate, outcome.id, tonumber(known.priority) or 0,
      outcome.lifo and "RPUSH" or "LPUSH")
    places.wake(queue, gate)
  end
  redis.call("HSET", job, "atm", countOf(known.atm), "x.ended", tries.ended(known.ats, work.now))
  journal.emitTrimmed(queue, gate, "waiting", "jobId", outcome.id, "prev", "active")
  return 0
end

function settle.delayed(work, outcome, i, job)
  local queue, due = work.queue, work.now + outcome.delay
  local reason, stacktrace = nextFailure(work)
  local known = hashes.read(job, "name", "x.group", "x.lane", "atm", "ats")
  if not known.name then return refusals.MISSING end
  if known["x.group"] and groups.stateOf(known["x.group"], job) ~= "ACTIVE" then
    return giveUp(work, outcome, i, job, reason, stacktrace)
  end
  local refusal = batches.leave(queue, work.batch, i, outcome)
  if refusal then return refusal end
  writeFailure(job, reason, stacktrace)
  if outcome.counts then
    redis.call("HSET", job, "delay", outcome.delay, "x.ended", tries.ended(known.ats, work.now), "atm",
      countOf(known.atm))
  else
    redis.call("HSET", job, "delay", outcome.delay, "x.ended", tries.ended(known.ats, work.now))
  end
  journal.emitTrimmed(queue, work.gate, "delayed", "jobId", outcome.id, "delay", due)
  if known["x.lane"] then
    lanes.putOff(queue, known["x.lane"], outcome.id, due, not outcome.skip)
  else
    places.delay(queue, outcome.id, due)
    places.wakeWhenDue(queue)
  end
  return 0
end

--- Given back without counting as an attempt: a rate limit, or a worker that is shutting down.
function settle.returned(work, outcome, i, job)
  local queue, gate = work.queue, work.gate
  local known = hashes.read(job, "name", "priority", "x.group", "x.lane")
  if not known.name then return refusals.MISSING end
  local refusal = batches.leave(queue, work.batch, i, outcome)
  if refusal then return refusal end
  if known["x.group"] then
    if outcome.begun then jobs.noteOpenEnd(job) end
    if groups.stateOf(known["x.group"], job) ~= "ACTIVE" then
      redis.call("HSET", job, "defa", "its group is being undone")
    end
  end
  if known["x.lane"] then
    if outcome.lane_limit then lanes.hold(queue, known["x.lane"], outcome.lane_limit) end
    lanes.giveBack(queue, known["x.lane"], outcome.id)
  else
    places.first(queue, gate, outcome.id, tonumber(known.priority) or 0)
  end
  if outcome.limit then
    -- Two jobs may have been told to wait: the longer wait counts, and a window is not cut short.
    gates.hold(queue, gate, math.max(outcome.limit, redis.call("PTTL", queue.limiter)))
  end
  places.wake(queue, gate)
  journal.emitTrimmed(queue, gate, "waiting", "jobId", outcome.id, "prev", "active")
  return 0
end

--- If there is no child to wait for, the job stays with its worker, which is told how many times in a
--- row this has happened.
settle["waiting-children"] = function(work, outcome, i, job)
  if redis.call("EXISTS", job) == 0 then return refusals.MISSING end
  if redis.call("ZCARD", job .. ":unsuccessful") > 0 then return refusals.CHILD_FAILED end
  if redis.call("SCARD", job .. ":dependencies") == 0 then
    local refusal = batches.refuse(work.batch, i, outcome)
    if refusal then return refusal end
    return redis.call("HINCRBY", job, "x.waits", 1)
  end
  local refusal = batches.leave(work.queue, work.batch, i, outcome)
  if refusal then return refusal end
  redis.call("HDEL", job, "x.waits")
  redis.call("ZADD", work.queue.waiting_children, work.now, outcome.id)
  journal.emit(work.queue, "waiting-children", "jobId", outcome.id, "prev", "active")
  return 0
end

local function shorten(list, length)
  for i = #list, length + 1, -1 do list[i] = nil end
end

--- Take back what an outcome that could not be written left in the batch: the job is active again, and
--- its worker holds it. The numbers say how many of each there were before it.
local function takeBack(work, outcome, ids, completed, of_lanes)
  local batch = work.batch
  for i = #batch.ids, ids + 1, -1 do
    batch.ids[i], batch.locks[i] = nil, nil
    if not batch.leaves_together then redis.call("RPUSH", work.queue.active, outcome.id) end
  end
  shorten(batch.completed, completed)
  shorten(batch.lanes, of_lanes)
end

local function takeBackLetter(work, outcome, letters, moved)
  local dead_letters = work.dead_letters
  shorten(dead_letters.moved, moved)
  for i = #dead_letters.ids, letters + 1, -1 do
    if dead_letters.away then
      parcels.forget(work.queue.base, { dead_letters.ids[i] })
    else
      local letter = dead_letters.prefix .. dead_letters.ids[i]
      redis.pcall("RENAME", letter .. ":logs", work.queue.base .. ":" .. outcome.id .. ":logs")
      redis.call("UNLINK", letter)
    end
    dead_letters.ids[i] = nil
  end
end

--- Release each of a job's ties, as far as possible.
local function untie(work, outcome, job, known, reason)
  if known.lane then pcall(lanes.release, work.queue, known.lane, outcome.id) end
  if known.deduplication_id then
    pcall(deduplication.release, work.queue, work.gate, outcome.id, known.deduplication_id, work.now)
  end
  if known.parent_key then
    pcall(parents.childEnded, known.parent_key, known.parent, job, "failed", reason, work.now)
  end
  if known.group then
    pcall(groups.onSettled, known.group, job, "failed",
      { id = outcome.id, value = reason, started = true, released = work.batch.locks }, work.now)
  end
end

--- End as failed a job whose ties cannot be settled: it ends without them.
local function failAlone(work, outcome, i, job, first)
  local trouble = outcome.trouble and work.troubles[outcome.trouble]
  local how = trouble or outcome
  local reason = trouble and trouble.reason or work.words[first]
  local stacktrace = trouble and trouble.stacktrace or not trouble and work.words[first + 1]
  local is_read, known = pcall(jobs.readEnding, job)
  local refusal = batches.leave(work.queue, work.batch, i, outcome)
  if refusal then return refusal end
  if not is_read or not known then
    damage.abandon(work.queue, outcome.id, reason, work.now)
    return 0
  end
  work.has_finished = true
  if stacktrace then redis.call("HSET", job, "stacktrace", stacktrace) end
  untie(work, outcome, job, known, reason)
  return jobs.finish(work.queue, work.gate, { id = outcome.id, state = "failed", value = reason,
    keep = how.keep, attempts = how.attempts, trouble = trouble, is_raw = outcome.is_raw,
    dead_letters = work.dead_letters },
    { name = known.name, attempts_made = known.attempts_made }, work.a.points, work.now) or 0
end

--- Write one outcome. If the server cannot, because of what the job's keys hold, no other outcome is
--- affected: the worker is told and fails the job, and a failure is written without the job's ties.
local function settleOne(work, outcome, i)
  local batch, dead_letters, first = work.batch, work.dead_letters, work.payload
  local ids, completed, of_lanes = #batch.ids, #batch.completed, #batch.lanes
  local letters, moved = dead_letters and #dead_letters.ids, dead_letters and #dead_letters.moved
  local is_written, result = pcall(settle[outcome.kind], work, outcome, i, batch.jobs[i])
  if is_written then return result end
  local words = damage.of(work.queue, result)
  takeBack(work, outcome, ids, completed, of_lanes)
  if dead_letters then takeBackLetter(work, outcome, letters, moved) end
  if outcome.kind ~= "failed" then return { refusals.DAMAGED, words } end
  return failAlone(work, outcome, i, batch.jobs[i], first)
end

local function settleAll(work)
  local outcomes, results = work.a.outcomes, {}
  if #outcomes > 0 then
    journal.trimWithNext(work.queue, work.gate)
  end
  for i, outcome in ipairs(outcomes) do
    results[i] = settleOne(work, outcome, i)
  end
  batches.release(work.queue, work.batch)
  if work.dead_letters then burials.close(work.queue, work.dead_letters, work.now) end
  return results
end

--- Is nothing left to do, now that something has ended?
local function isDrained(work, taken_jobs, rate_limit_ms, next_due_ms)
  local queue = work.queue
  return (work.has_finished or rawget(queue, "has_stranded")) and #taken_jobs == 0
    and rate_limit_ms == 0 and next_due_ms == 0
    and redis.call("LLEN", queue.active) == 0 and redis.call("LLEN", queue.wait) == 0
    and redis.call("EXISTS", queue.prioritized, queue["lanes:waiting"]) == 0
    and not (work.gate.paused and work.a.take > 0)
end

--- Wake those for whom something has changed.
local function wakeOthers(work, taken_jobs)
  local queue, gate = work.queue, work.gate
  if #taken_jobs > 0 then return end
  -- No marker announces a freed slot; workers that wait for one are woken here.
  if gate.concurrency and #work.a.outcomes > 0
      and redis.call("EXISTS", queue.wait, queue.prioritized, queue["lanes:ready"]) > 0 then
    places.wake(queue, gate)
  end
end

function calls.settle(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, failed, marker, stalled, limiter, meta, id, events, replies, dead_base, dead_wait, dead_paused, dead_active, dead_marker, dead_meta, dead_id, dead_events = unpack(KEYS)
  local queue = queues.given({ base = base, wait = wait, paused = paused, active = active,
    prioritized = prioritized, pc = pc, delayed = delayed, waiting_children = waiting_children,
    completed = completed, failed = failed, marker = marker, stalled = stalled, limiter = limiter,
    meta = meta, id = id, events = events })
  local now = clock.now()
  local last = redis.call("HGET", replies, a.flight)
  local number = last and string.sub(last, -DIGITS) or ""
  if number > a.request then return refusals.STALE end
  if number == a.request then return answerAgain(base, last, a, now) end
  if a.received then noteReceived(replies, a.received) end

  local work = begin(queue, a, ARGV, dead_base or a.away, now)
  local results = settleAll(work)
  local taken_jobs, rate_limit_ms, next_due_ms = {}, 0, 0
  if a.take > 0 then
    taken_jobs, rate_limit_ms, next_due_ms = takes.take(queue, work.gate, a, now)
  end
  if isDrained(work, taken_jobs, rate_limit_ms, next_due_ms) then journal.emit(queue, "drained") end
  wakeOthers(work, taken_jobs)

  local taken = {}
  for i, job in ipairs(taken_jobs) do
    taken[i] = job[#job]
  end
  remember(replies, a, results, taken, rate_limit_ms, next_due_ms, now)
  return { results, taken_jobs, rate_limit_ms, next_due_ms, now }
end
