#!lua flags=allow-oom
--[[
  settle: write how some attempts ended, then take new jobs, in one call.

  Every outcome stands for itself: one that is refused changes nothing and does not touch the others.
  The last call of each flight is remembered in `replies`, so that a lost reply can be asked for
  again and gives the same answer. A newer call of the flight shows that the reply was received.

  Keys      base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, failed,
            marker, stalled, limiter, meta, id, events, replies, dead_base, dead_wait, dead_paused,
            dead_active, dead_marker, dead_meta, dead_id, dead_events (the last eight only when a job
            goes to the dead letters)
  Args      outcomes list of {id, token, kind, keep, attempts, delay, counts, limit,
            lane_limit, skip, on_exhausted, begun, trouble, at, is_special, is_raw (the last four of one that goes to the
            dead letters: the number of its trouble, when it was added as text, does it take the long
            way, are its data no JSON)},
            troubles list of {name, made, attempts, keep, on_exhausted, stacktrace}? (what those that go
            to the dead letters have in common: includes/deadLetter.lua; `made` attempts of `attempts`),
            take int (how many jobs may be started), token str, lock_ms int, name str?,
            limiter {max, duration}?, points int? (metrics), flight str, request int,
            received list of {flight, request}?, dead_letters str? (the name of the queue that takes
            them), queue str? (this queue's name), keep_letters {count, age}? (in ms)
            After the map, raw, for each trouble: the reason, the metadata, the note. Then for each
            outcome in order: `completed` the return value; `failed`, `retry` and `delayed` the reason
            and the stack traces ("" for none), and nothing for one with a trouble.
  Returns   results (for each outcome 0, a refusal, or its id among the dead letters; for a damaged job
            a list), jobs, rate limit ms, next due ms, now ms
  Refuses   -1    the job does not exist                                  JobNotFoundError
            -2    its lock has expired                                    LockLostError
            -3    it is not active                                        JobNotInStateError
            -4    children of it are pending                              PendingChildrenError
            -6    another worker holds its lock                           LockLostError
            -9    a child of it failed                                    FailedChildrenError
            -10   it cannot be written, with the words of the error       DamagedJobError
            -101  a newer request of this worker was served already       StaleRequestError
  Emits     completed, failed, retries-exhausted, deadLettered, added, delayed, waiting,
            waiting-children, active, drained
  Keeps     I1, I2, I3, I5, I6
  Cost      O(outcomes + take), at most 200 delayed jobs and 100 of lanes let in, 1000 old ones removed per
            outcome; half a megabyte of jobs is enough (next due ms is then the time now)
]]
local base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, failed, marker, stalled, limiter, meta, id, events, replies, dead_base, dead_wait, dead_paused, dead_active, dead_marker, dead_meta, dead_id, dead_events = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/lanes"
--- @include "includes/promoteDue"
--- @include "includes/deleteJob"
--- @include "includes/parents"
--- @include "includes/deduplication"
--- @include "includes/removeJob"
--- @include "includes/retain"
--- @include "includes/metrics"
--- @include "includes/batch"
--- @include "includes/finish"
--- @include "includes/buryPlainly"
--- @include "includes/hold"
--- @include "includes/takeLanes"
--- @include "includes/take"
--- @include "includes/damage"

local queue = queueAt(base)
local now = clock()
local last = redis.call("HGET", replies, a.flight)
if last then
  last = cmsgpack.unpack(last)
  if last.request > a.request then return -101 end
  if last.request == a.request then
    local jobs = {}
    for _, taken_id in ipairs(last.taken) do
      local job = base .. ":" .. taken_id
      if redis.pcall("GET", job .. ":lock") == last.token then
        -- Most of its time may have gone by while nobody knew of the job.
        redis.call("PEXPIRE", job .. ":lock", digits(a.lock_ms))
        jobs[#jobs + 1] = readTaken(job, taken_id)
      end
    end
    return { last.results, jobs, last.rate_limit_ms, last.next_due_ms, now }
  end
end

for _, call in ipairs(a.received or {}) do
  local other = redis.call("HGET", replies, call[1])
  if other then
    other = cmsgpack.unpack(other)
    if other.request == call[2] then
      other.taken = {}
      redis.call("HSET", replies, call[1], cmsgpack.pack(other))
    end
  end
end

local troubles = a.troubles or {}
for i, trouble in ipairs(troubles) do
  trouble.reason, trouble.metadata, trouble.note = ARGV[3 * i - 1], ARGV[3 * i], ARGV[3 * i + 1]
end

local gate = readGate(queue)
local payload = 2 + 3 * #troubles
local has_finished = false
local batch = readBatch(queue, gate, a.outcomes)

--- The reason and the stack traces that come with a failed attempt.
local function nextFailure()
  payload = payload + 2
  return ARGV[payload - 2], ARGV[payload - 1]
end

local dead_letters
if dead_base then
  local jobs = {}
  for i, outcome in ipairs(a.outcomes) do
    if outcome.trouble then jobs[#jobs + 1] = batch.jobs[i] end
  end
  dead_letters = openDeadLetters(dead_base, a.dead_letters, a.queue, jobs, batch.has_children,
    troubles, now)
  dead_letters.keep = a.keep_letters
end

local function writeFailure(job, reason, stacktrace)
  if reason ~= "" then
    redis.call("HSET", job, "failedReason", reason, "stacktrace", stacktrace)
  end
end

--- A number that somebody damaged begins anew: refusing it here would leave the job half-way.
local function countAttempt(job, made)
  redis.call("HSET", job, "atm", digits((tonumber(made) or 0) + 1))
end

local settle = {}

function settle.completed(outcome, i, job)
  local value = ARGV[payload]
  payload = payload + 1
  local known = readEnding(job)
  if not known then return -1 end
  if batch.has_children then
    if redis.call("SCARD", job .. ":dependencies") > 0 then return -4 end
    if redis.call("ZCARD", job .. ":unsuccessful") > 0 then return -9 end
  end
  local refusal = leaveInBatch(queue, batch, i, outcome)
  if refusal then return refusal end
  has_finished = true
  finishJob(queue, gate, { id = outcome.id, state = "completed", value = value, keep = outcome.keep,
    batch = batch, released = batch.locks }, known, a.points, now)
  return 0
end

function settle.failed(outcome, i, job)
  local trouble = outcome.trouble and troubles[outcome.trouble]
  local letter_id = trouble
    and buryPlainly(queue, dead_letters, batch, i, outcome, trouble, a.points, now)
  if letter_id then
    has_finished = has_finished or type(letter_id) == "string"
    return letter_id
  end
  local how, reason, stacktrace = outcome, nil, nil
  if trouble then
    how, reason, stacktrace = trouble, trouble.reason, trouble.stacktrace
  else
    reason, stacktrace = nextFailure()
  end
  local known = readEnding(job)
  if not known then return -1 end
  local refusal = leaveInBatch(queue, batch, i, outcome)
  if refusal then return refusal end
  has_finished = true
  if stacktrace then
    redis.call("HSET", job, "stacktrace", stacktrace)
  end
  return finishJob(queue, gate, { id = outcome.id, state = "failed", value = reason, keep = how.keep,
    attempts = how.attempts, trouble = trouble, is_raw = outcome.is_raw, dead_letters = dead_letters,
    released = batch.locks, on_exhausted = how.on_exhausted }, known, a.points, now) or 0
end

--- A member whose group is being undone is not tried again: it has failed for good.
local function giveUp(outcome, i, job, reason, stacktrace)
  local known = readEnding(job)
  local refusal = leaveInBatch(queue, batch, i, outcome)
  if refusal then return refusal end
  has_finished = true
  if reason == "" then
    reason = "its group is being undone"
  else
    redis.call("HSET", job, "stacktrace", stacktrace)
  end
  -- It would have been tried again, so its attempts are not exhausted.
  finishJob(queue, gate, { id = outcome.id, state = "failed", value = reason, attempts = math.huge,
    released = batch.locks }, known, a.points, now)
  return 0
end

function settle.retry(outcome, i, job)
  local reason, stacktrace = nextFailure()
  local known = redis.call("HMGET", job, "name", "priority", "x.group", "x.lane", "atm")
  if not known[1] then return -1 end
  if known[3] and groupStateOf(known[3], job) ~= "ACTIVE" then
    return giveUp(outcome, i, job, reason, stacktrace)
  end
  local refusal = leaveInBatch(queue, batch, i, outcome)
  if refusal then return refusal end
  writeFailure(job, reason, stacktrace)
  promoteDue(queue, gate, now)
  if known[4] then
    returnToLane(queue, known[4], outcome.id)
  else
    placeReady(queue, gate, outcome.id, tonumber(known[2]) or 0, outcome.lifo and "RPUSH" or "LPUSH")
    wake(queue, gate)
  end
  countAttempt(job, known[5])
  emitTrimmed(queue, gate, "waiting", "jobId", outcome.id, "prev", "active")
  return 0
end

function settle.delayed(outcome, i, job)
  local reason, stacktrace = nextFailure()
  local known = redis.call("HMGET", job, "name", "x.group", "x.lane", "atm")
  if not known[1] then return -1 end
  if known[2] and groupStateOf(known[2], job) ~= "ACTIVE" then
    return giveUp(outcome, i, job, reason, stacktrace)
  end
  local refusal = leaveInBatch(queue, batch, i, outcome)
  if refusal then return refusal end
  writeFailure(job, reason, stacktrace)
  if outcome.counts then
    countAttempt(job, known[4])
  end
  redis.call("HSET", job, "delay", outcome.delay)
  emitTrimmed(queue, gate, "delayed", "jobId", outcome.id, "delay", now + outcome.delay)
  if known[3] then
    putOffInLane(queue, known[3], outcome.id, now + outcome.delay, not outcome.skip)
  else
    placeDelayed(queue, outcome.id, now + outcome.delay)
    wakeWhenDue(queue)
  end
  return 0
end

--- Given back without having counted: a rate limit, or a worker that is shutting down.
function settle.returned(outcome, i, job)
  local known = redis.call("HMGET", job, "name", "priority", "x.group", "x.lane")
  if not known[1] then return -1 end
  local refusal = leaveInBatch(queue, batch, i, outcome)
  if refusal then return refusal end
  if known[3] then
    if outcome.begun then noteOpenEnd(job) end
    if groupStateOf(known[3], job) ~= "ACTIVE" then
      redis.call("HSET", job, "defa", "its group is being undone")
    end
  end
  if known[4] then
    if outcome.lane_limit then holdLane(queue, known[4], outcome.lane_limit) end
    returnToLane(queue, known[4], outcome.id)
  else
    placeFirst(queue, gate, outcome.id, tonumber(known[2]) or 0)
  end
  if outcome.limit then
    -- Two jobs may have been told to wait: the longer wait counts, and a window is not cut short.
    holdBack(queue, gate, math.max(outcome.limit, redis.call("PTTL", queue.limiter)))
  end
  wake(queue, gate)
  emitTrimmed(queue, gate, "waiting", "jobId", outcome.id, "prev", "active")
  return 0
end

--- When there is no child to wait for the job stays with its worker, who is told how often in a row
--- this has happened.
settle["waiting-children"] = function(outcome, i, job)
  if redis.call("EXISTS", job) == 0 then return -1 end
  if redis.call("ZCARD", job .. ":unsuccessful") > 0 then return -9 end
  if redis.call("SCARD", job .. ":dependencies") == 0 then
    local refusal = refuseInBatch(batch, i, outcome)
    if refusal then return refusal end
    return redis.call("HINCRBY", job, "x.waits", 1)
  end
  local refusal = leaveInBatch(queue, batch, i, outcome)
  if refusal then return refusal end
  redis.call("HDEL", job, "x.waits")
  redis.call("ZADD", queue.waiting_children, now, outcome.id)
  emit(queue, "waiting-children", "jobId", outcome.id, "prev", "active")
  return 0
end

--- What an outcome that could not be written has left in the batch is taken back: the job is active
--- again, and its worker holds it.
local function takeBack(outcome, ids, completed, lanes, moved, letters)
  for i = #batch.ids, ids + 1, -1 do
    batch.ids[i], batch.locks[i] = nil, nil
    if not batch.leaves_together then redis.call("RPUSH", active, outcome.id) end
  end
  for i = #batch.completed, completed + 1, -1 do batch.completed[i] = nil end
  for i = #batch.lanes, lanes + 1, -1 do batch.lanes[i] = nil end
  if not dead_letters then return end
  for i = #dead_letters.moved, moved + 1, -1 do dead_letters.moved[i] = nil end
  for i = #dead_letters.ids, letters + 1, -1 do
    local letter = dead_letters.prefix .. dead_letters.ids[i]
    redis.pcall("RENAME", letter .. ":logs", base .. ":" .. outcome.id .. ":logs")
    redis.call("UNLINK", letter)
    dead_letters.ids[i] = nil
  end
end

--- End a job as failed whose ties trip those who end it: each is let go as far as that goes, and the
--- job ends without them.
local function failAlone(outcome, i, job, first)
  local trouble = outcome.trouble and troubles[outcome.trouble]
  local how = trouble or outcome
  local reason = trouble and trouble.reason or ARGV[first]
  local stacktrace = trouble and trouble.stacktrace or not trouble and ARGV[first + 1]
  local is_read, known = pcall(readEnding, job)
  if not is_read or not known then
    local refusal = leaveInBatch(queue, batch, i, outcome)
    if refusal then return refusal end
    abandonJob(queue, outcome.id, reason, now)
    return 0
  end
  local refusal = leaveInBatch(queue, batch, i, outcome)
  if refusal then return refusal end
  has_finished = true
  if stacktrace then redis.call("HSET", job, "stacktrace", stacktrace) end
  if known.lane then pcall(releaseLane, queue, known.lane, outcome.id) end
  if known.deduplication_id then
    pcall(releaseDeduplication, queue, gate, outcome.id, known.deduplication_id, now)
  end
  if known.parent_key then
    pcall(childFailed, parentOf(known.parent_key, known.parent), job, reason, now)
  end
  if known.group then
    pcall(groupOnSettled, known.group, job, "failed",
      { id = outcome.id, value = reason, started = true, released = batch.locks }, now)
  end
  return finishJob(queue, gate, { id = outcome.id, state = "failed", value = reason, keep = how.keep,
    attempts = how.attempts, trouble = trouble, is_raw = outcome.is_raw, dead_letters = dead_letters },
    { name = known.name, attempts_made = known.attempts_made }, a.points, now) or 0
end

--- Write one outcome. If the server cannot, because of what it finds at or beside the job, no other one
--- is touched: the worker is told and fails the job, and a failure is written without the job's ties.
local function settleOne(outcome, i, job)
  local first, ids, completed, lanes = payload, #batch.ids, #batch.completed, #batch.lanes
  local moved, letters = dead_letters and #dead_letters.moved, dead_letters and #dead_letters.ids
  local is_written, result = pcall(settle[outcome.kind], outcome, i, job)
  if is_written then return result end
  local words = damageOf(queue, result)
  takeBack(outcome, ids, completed, lanes, moved, letters)
  if outcome.kind ~= "failed" then return { -10, words } end
  return failAlone(outcome, i, job, first)
end

local results = {}
if #a.outcomes > 0 then
  trimEvents(queue, gate)
end
for i, outcome in ipairs(a.outcomes) do
  results[i] = settleOne(outcome, i, batch.jobs[i])
end
releaseBatch(queue, batch)

if dead_letters then closeDeadLetters(queue, dead_letters, now) end

local jobs, rate_limit_ms, next_due_ms = {}, 0, 0
if a.take > 0 then
  jobs, rate_limit_ms, next_due_ms = takeJobs(queue, gate, a.take,
    { token = a.token, lock_ms = digits(a.lock_ms), name = a.name }, a.limiter, now)
end

has_finished = has_finished or rawget(queue, "has_stranded")
if has_finished and #jobs == 0 and rate_limit_ms == 0 and next_due_ms == 0
    and redis.call("LLEN", queue.active) == 0 and redis.call("LLEN", queue.wait) == 0
    and redis.call("EXISTS", queue.prioritized, queue["lanes:waiting"]) == 0
    and not (gate.paused and a.take > 0) then
  emit(queue, "drained")
end

-- No marker tells of a slot that is free again; whoever waits for one is woken here.
if gate.concurrency and #a.outcomes > 0 and #jobs == 0
    and redis.call("EXISTS", queue.wait, queue.prioritized, queue["lanes:ready"]) > 0 then
  wake(queue, gate)
end
if #jobs == 0 and rawget(queue, "lanes") then wakeForLanes(queue, gate) end

local taken = {}
for i, job in ipairs(jobs) do
  taken[i] = job[#job]
end
redis.call("HSET", replies, a.flight, cmsgpack.pack({ request = a.request, token = a.token,
  at = now, results = results, taken = taken, rate_limit_ms = rate_limit_ms,
  next_due_ms = next_due_ms }))
return { results, jobs, rate_limit_ms, next_due_ms, now }
