#!lua
--[[
  add: put new jobs into the queue, each on its own.

  The client chose the ids. One that was generated cannot exist already, so when it does, this call
  was sent again after a lost reply and the job is in. `added` in the stream tells the same of a job
  that has run and gone since.

  Keys      base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed,
            marker, meta, id, events
  Args      jobs list of {id, name, custom, delay, run_at, priority, lifo, timestamp, parent_key,
            parent, de}, resend bool?
            After the map, raw, for each job: its data, its options as JSON.
  Returns   now ms, then for each job: 0 added, 1 an equal id exists, a refusal, or the id of the
            job that owns its deduplication id
  Refuses   -5  its parent does not exist                                 ParentNotFoundError
            -7  the job that exists has another parent                    ParentConflictError
  Emits     added, waiting, delayed, duplicated, deduplicated, removed
  Keeps     I1, I4
  Cost      O(jobs)
]]
local base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, marker, meta, id, events = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/parents"
--- @include "includes/deleteJob"
--- @include "includes/deduplicate"

local queue = queueAt(base)
local now = clock()
local gate = readGate(queue)
local has_ready, has_delayed = false, false
local counted = 0

--- Was this job added by the same call, whose reply got lost?
local function wasAdded(job, key, data)
  local stored = redis.call("HGET", key, "data")
  if stored then
    return not job.custom or stored == data
  end
  for _, entry in ipairs(redis.call("XREVRANGE", queue.events, "+", "-", "COUNT", 2000)) do
    local fields = entry[2]
    if fields[2] == "added" and fields[4] == job.id then return true end
  end
  return false
end

--- A child that exists already is tied to the parent of the request.
local function attachExisting(job, key)
  local known = redis.call("HMGET", key, "parentKey", "returnvalue")
  if known[1] and known[1] ~= job.parent_key and redis.call("EXISTS", known[1]) == 1 then
    return -7
  end
  local parent = parentOf(job.parent_key, job.parent)
  if redis.call("ZSCORE", queue.completed, job.id) then
    redis.call("HSET", job.parent_key .. ":processed", key, known[2] or "null")
    if hasNoChildrenLeft(parent) then
      releaseParent(parent, now)
    end
  else
    redis.call("SADD", job.parent_key .. ":dependencies", key)
  end
  redis.call("HSET", key, "parentKey", job.parent_key, "parent", job.parent)
  return 1
end

local function addJob(job, data, opts)
  if job.parent_key and redis.call("EXISTS", job.parent_key) == 0 then return -5 end
  local key = base .. ":" .. job.id
  if a.resend and wasAdded(job, key, data) then return 0 end
  counted = counted + 1
  if redis.call("EXISTS", key) == 1 then
    local result = job.parent_key and attachExisting(job, key) or 1
    if result == 1 then
      emitTrimmed(queue, gate, "duplicated", "jobId", job.id)
    end
    return result
  end

  local timestamp = job.timestamp or now
  local priority = job.priority or 0
  local delay = job.run_at and math.max(0, job.run_at - now) or job.delay or 0
  local due = job.run_at or timestamp + delay
  if job.de then
    local owner = deduplicate(queue, gate, job.de,
      { id = job.id, name = job.name, data = data, opts = opts, delay = delay, due = due })
    if owner then return owner end
  end
  if job.parent_key then
    redis.call("HSET", key, "name", job.name, "data", data, "opts", opts, "timestamp", timestamp,
      "delay", delay, "priority", priority, "parentKey", job.parent_key, "parent", job.parent)
  else
    redis.call("HSET", key, "name", job.name, "data", data, "opts", opts, "timestamp", timestamp,
      "delay", delay, "priority", priority)
  end
  if job.de then redis.call("HSET", key, "deid", job.de.id) end
  emit(queue, "added", "jobId", job.id, "name", job.name)
  if delay > 0 then
    placeDelayed(queue, job.id, due)
    emitTrimmed(queue, gate, "delayed", "jobId", job.id, "delay", due)
    has_delayed = true
  else
    placeReady(queue, gate, job.id, priority, job.lifo and "RPUSH" or "LPUSH")
    emitTrimmed(queue, gate, "waiting", "jobId", job.id)
    has_ready = true
  end
  if job.parent_key then
    redis.call("SADD", job.parent_key .. ":dependencies", key)
  end
  return 0
end

local results = { now }
for i, job in ipairs(a.jobs) do
  results[i + 1] = addJob(job, ARGV[2 * i], ARGV[2 * i + 1])
end
if counted > 0 then redis.call("INCRBY", queue.id, counted) end
if has_ready then wake(queue, gate) end
if has_delayed then wakeWhenDue(queue) end
return results
