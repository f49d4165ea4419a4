--- @lazily
--- @include "includes/lanes"
--- Does another job own the deduplication id of this new one? What follows from that is the mode's
--- business; returns the owner's id when the new job is not to be added.
--- `wanted` = { id, ttl, extend, replace, keep_last, reschedule }.

local function tellDeduplicated(queue, gate, deduplication_id, job_id, other_id)
  if gate.is_version_5 then
    emitTrimmed(queue, gate, "debounced", "jobId", job_id, "debounceId", deduplication_id)
  end
  emitTrimmed(queue, gate, "deduplicated", "jobId", job_id, "deduplicationId", deduplication_id,
    "deduplicatedJobId", other_id)
end

local function own(owner_key, wanted, job_id)
  if wanted.ttl and not wanted.keep_last then
    redis.call("SET", owner_key, job_id, "PX", wanted.ttl)
  else
    redis.call("SET", owner_key, job_id)
  end
end

--- A key that never expires and names a job which is gone would hold the id for good.
local function isStale(queue, owner_key, owner)
  return redis.call("EXISTS", queue.base .. ":" .. owner) == 0
    and redis.call("PTTL", owner_key) == -1
end

local function isActive(queue, id)
  return redis.call("EXISTS", queue.base .. ":" .. id .. ":lock") == 1
    or redis.call("LPOS", queue.active, id) ~= false
end

--- The newest one that came while the owner ran waits for its turn in `dn`: as BullMQ reads it, and
--- as it was asked for (`x.job`), so that it is added later as it would have been now. Its place in a
--- lane is that of its arrival.
local function keepForLater(queue, wanted, new)
  local pending = queue.base .. ":dn:" .. wanted.id
  local job = new.job
  job.de = nil
  if job.lane then job.order_ms = new.order_ms end
  redis.call("DEL", pending)
  redis.call("HSET", pending, "name", new.name, "data", new.data, "opts", new.opts, "jid", new.id,
    "x.job", cmsgpack.pack(job))
  redis.call("PERSIST", queue.base .. ":de:" .. wanted.id)
end

--- Put the owner, still delayed, off to the time that the new job asks for.
local function putOff(queue, gate, owner, new)
  if redis.call("ZREM", queue.delayed, owner) == 1 then
    placeDelayed(queue, owner, new.due)
    wakeWhenDue(queue)
  else
    local lane, mark = takeDelayedInLane(queue, owner)
    if not lane then return end
    putAside(queue, laneOf(lane), laneMember(lane, owner, mark), new.due)
    wakeLanesWhenDue(queue)
  end
  redis.call("HSET", queue.base .. ":" .. owner, "delay", new.delay)
  emitTrimmed(queue, gate, "delayed", "jobId", owner, "delay", new.due)
end

local function replaceDelayed(queue, gate, wanted, owner, new_id)
  local owner_key = queue.base .. ":de:" .. wanted.id
  deleteJob(queue.base .. ":" .. owner)
  emit(queue, "removed", "jobId", owner, "prev", "delayed")
  tellDeduplicated(queue, gate, wanted.id, new_id, owner)
  if wanted.ttl and not wanted.extend and not wanted.keep_last then
    redis.call("SET", owner_key, new_id, "KEEPTTL")
  else
    own(owner_key, wanted, new_id)
  end
  redis.call("DEL", queue.base .. ":dn:" .. wanted.id)
end

--- Is there no room for a new job, although it needs one? Asked before anything is written: one that
--- is deduplicated comes into no lane, and one that replaces a job of its lane takes its place.
local function hasNoRoom(queue, job)
  if not isLaneFull(queue, job.lane, job.max_lane_size) then return false end
  if not job.de then return true end
  local owner_key = queue.base .. ":de:" .. job.de.id
  local owner = redis.call("GET", owner_key)
  if not owner or isStale(queue, owner_key, owner) then return true end
  if not job.de.replace or (job.de.keep_last and isActive(queue, owner)) then return false end
  if redis.call("ZSCORE", queue.delayed, owner) then return true end
  local lane = findDelayedInLane(queue, owner)
  if not lane then return false end
  return laneOf(lane) ~= laneName(job.lane) or isLaneFull(queue, job.lane, job.max_lane_size, -1)
end

--- `new` = { id, name, data, opts, delay, due, job, order_ms }, the job that wants in.
local function deduplicate(queue, gate, wanted, new)
  local owner_key = queue.base .. ":de:" .. wanted.id
  local owner = redis.call("GET", owner_key)
  if owner and isStale(queue, owner_key, owner) then
    redis.call("DEL", owner_key, queue.base .. ":dn:" .. wanted.id)
    owner = false
  end
  if not owner then
    own(owner_key, wanted, new.id)
    return nil
  end
  if wanted.keep_last and isActive(queue, owner) then
    keepForLater(queue, wanted, new)
    tellDeduplicated(queue, gate, wanted.id, owner, new.id)
    return owner
  end
  if wanted.replace then
    if redis.call("ZREM", queue.delayed, owner) == 0 then
      local lane = takeDelayedInLane(queue, owner)
      if not lane then return owner end
      dropKept(queue, owner)
      releaseLane(queue, lane, owner)
    end
    replaceDelayed(queue, gate, wanted, owner, new.id)
    return nil
  end
  if wanted.ttl and wanted.extend then own(owner_key, wanted, owner) end
  tellDeduplicated(queue, gate, wanted.id, owner, new.id)
  if wanted.reschedule then putOff(queue, gate, owner, new) end
  return owner
end
