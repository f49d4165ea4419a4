--- Schedulers: their records, their slots, and the one job that each has pending.
---
--- A paused scheduler has no pending job. Its record stays, with `x.paused` (since when), `x.pending` (the
--- options of the job that was removed) and `x.ran` (if a worker had already taken that job).
--- Its score in `repeat` is 0: no job has that time, so nobody, not even BullMQ, creates a next one; and
--- BullMQ's upsert, which removes the marks, finds the next time on the grid from there.

local MOST_SLOTS = 32

--- The first slot of a grid that is later than `now`.
local function alignedAfter(now, every, offset)
  local slot = math.floor(now / every) * every + offset
  return slot > now and slot or slot + every
end

--- When the first iteration is due.
function schedules.firstSlot(now, every, offset, start)
  if start then return math.max(start, now) end
  if offset > 0 then return alignedAfter(now, every, offset) end
  return now
end

--- When the iteration after `previous` is due. Missed ones are not made up for: the next one is back on
--- the grid.
function schedules.slotAfter(previous, now, every, offset)
  local slot = previous + every
  if slot < now then return alignedAfter(now, every, offset) end
  return slot
end

function schedules.iterationId(scheduler, at)
  return "repeat:" .. scheduler .. ":" .. string.format("%.0f", at)
end

local function exists(queue, scheduler_id, at)
  return redis.call("EXISTS", queue.base .. ":" .. schedules.iterationId(scheduler_id, at)) == 1
end

--- How the pending iteration is taken out of its place, and which place; nothing if it waits nowhere.
local function placeOf(queue, pending)
  for _, set in ipairs({ queue.delayed, queue.prioritized }) do
    if redis.call("ZSCORE", set, pending) then return "ZREM", set end
  end
  for _, list in ipairs({ queue.wait, queue.paused }) do
    if redis.call("LPOS", list, pending) then return "LREM", list end
  end
  local lane = redis.call("HGET", queue.base .. ":" .. pending, "x.lane")
  if lane and lanes.hasWaiting(queue, lane, pending) then return "lane", lane end
  return nil
end

--- Has an iteration run, so that it waits for its next attempt? Then the schedule has gone on without
--- it, or has ended with it: it is a job like any other.
function schedules.hasRun(job)
  local known = hashes.tryRead(job, "atm", "x.ended")
  return (known.atm or known["x.ended"]) and true or false
end

--- The pending iteration, which is due at `at`: { id, at, how, place }, without a place if it is not
--- there, no longer waits, or has run.
function schedules.pendingOf(queue, scheduler_id, at)
  if not at then return {} end
  local pending = { id = schedules.iterationId(scheduler_id, at), at = at }
  if exists(queue, scheduler_id, at) and not schedules.hasRun(queue.base .. ":" .. pending.id) then
    pending.how, pending.place = placeOf(queue, pending.id)
  end
  return pending
end

--- Remove the pending iteration, if it waits.
function schedules.takeOut(queue, pending)
  if not pending.place then return end
  if pending.how == "lane" then
    lanes.pull(queue, pending.place, pending.id)
  elseif pending.how == "ZREM" then
    redis.call("ZREM", pending.place, pending.id)
  else
    redis.call("LREM", pending.place, 1, pending.id)
  end
  jobs.delete(queue.base .. ":" .. pending.id)
end

--- The first time from `at` on that has no job yet; or nothing, and the last time that was tried.
function schedules.freeSlot(queue, scheduler_id, every, at)
  local last
  for _ = 0, every and MOST_SLOTS or 0 do
    if not exists(queue, scheduler_id, at) then return at end
    last, at = at, at + (every or 0)
  end
  return nil, last
end

--- The first free time from `at` on (the pending iteration's own time counts as free), or nothing and a
--- refusal.
function schedules.slotFor(queue, a, pending, at)
  if pending.place and at == pending.at then return at end
  local free = schedules.freeSlot(queue, a.scheduler_id, a.every, at)
  if free then return free end
  return nil, a.every and refusals.TIMES_TAKEN or refusals.TIME_TAKEN
end

--- Rewrite the record of a scheduler. `offset` is 0 or nothing if `at` decides.
function schedules.write(repeat_key, scheduler, a, at, iterations, data, opts)
  local offset = a.offset or 0
  if a.every and offset == 0 then offset = at % a.every end
  redis.call("ZADD", repeat_key, at, a.scheduler_id)
  redis.call("DEL", scheduler)
  redis.call("HSET", scheduler, "name", a.name)
  if #a.fields > 0 then redis.call("HSET", scheduler, unpack(a.fields)) end
  redis.call("HSET", scheduler, "offset", offset)
  if opts ~= "" then redis.call("HSET", scheduler, "opts", opts) end
  if data ~= "{}" then redis.call("HSET", scheduler, "data", data) end
  redis.call("HSET", scheduler, "ic", iterations)
end

--- Add the iteration of a scheduler that is due at `at`. `opts` is the JSON of its options without
--- those that depend on the time; with `is_cron` they say when this one is due.
--- `iteration` = { scheduler, id_json, name, data, opts, priority, lifo, is_cron, lane,
--- ordering_delay }. In a lane its order is the time at which it is due.
function schedules.insert(queue, gate, iteration, at, now)
  local id = schedules.iterationId(iteration.scheduler, at)
  local delay = math.max(0, at - now)
  local head = string.format('{"jobId":%s%.0f","delay":%.0f,"timestamp":%.0f,', iteration.id_json, at,
    delay, now)
  if iteration.is_cron then
    head = head .. string.format('"prevMillis":%.0f,', at)
  end
  local opts = head .. string.sub(iteration.opts, 2)
  redis.call("INCR", queue.id)
  local place = jobs.insert(queue, gate, { id = id, name = iteration.name, run_at = at, timestamp = now,
    priority = iteration.priority, lifo = iteration.lifo, lane = iteration.lane, order_ms = at,
    ordering_delay = iteration.lane and iteration.ordering_delay, rjk = iteration.scheduler },
    iteration.data, opts, now)
  arrivals.wake(queue, gate, { [place] = true })
  return id, delay
end

--- Is this job the pending iteration of a scheduler? Without it the schedule would end.
function schedules.isNextIteration(queue, id)
  if string.sub(id, 1, 7) ~= "repeat:" then return false end
  local scheduler = redis.call("HGET", queue.base .. ":" .. id, "rjk")
  if not scheduler then return false end
  local at = redis.call("ZSCORE", queue["repeat"], scheduler)
  return at ~= false and id == "repeat:" .. scheduler .. ":" .. at
end
