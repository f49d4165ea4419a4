--- Does another job own the deduplication id of this new one? The mode decides what follows from that;
--- returns the owner's id if the new job must not be added.
--- `wanted` = { id, ttl, extend, replace, keep_last, reschedule }.

local function tellDeduplicated(queue, gate, deduplication_id, job_id, other_id)
  if gate.is_version_5 then
    journal.emitTrimmed(queue, gate, "debounced", "jobId", job_id, "debounceId", deduplication_id)
  end
  journal.emitTrimmed(queue, gate, "deduplicated", "jobId", job_id, "deduplicationId", deduplication_id,
    "deduplicatedJobId", other_id)
end

local function own(owner_key, wanted, job_id)
  if wanted.ttl and not wanted.keep_last then
    redis.call("SET", owner_key, job_id, "PX", wanted.ttl)
  else
    redis.call("SET", owner_key, job_id)
  end
end

--- A key that never expires and names a job that is gone would hold the id forever.
local function isStale(queue, owner_key, owner)
  return redis.call("EXISTS", queue.base .. ":" .. owner) == 0
    and redis.call("PTTL", owner_key) == -1
end

local function isActive(queue, id)
  return redis.call("EXISTS", queue.base .. ":" .. id .. ":lock") == 1
    or redis.call("LPOS", queue.active, id) ~= false
end

--- The newest job that came while the owner ran waits for its turn in `dn`: as BullMQ reads it, and
--- as it was requested (`x.job`), so that it is added later as it would have been now. Its arrival
--- decides its place in a lane.
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

--- Move the owner, which is still delayed, to the time that the new job asks for.
local function putOff(queue, gate, owner, new)
  if redis.call("ZREM", queue.delayed, owner) == 1 then
    places.delay(queue, owner, new.due)
    places.wakeWhenDue(queue)
  else
    local lane, mark = lanes.takeDelayed(queue, owner)
    if not lane then return end
    lanes.putAside(queue, laneNames.laneOf(lane), laneNames.member(lane, owner, mark), new.due)
    lanes.wakeWhenDue(queue)
  end
  redis.call("HSET", queue.base .. ":" .. owner, "delay", new.delay, "x.due", new.due)
  journal.emitTrimmed(queue, gate, "delayed", "jobId", owner, "delay", new.due)
end

local function replaceDelayed(queue, gate, wanted, owner, new_id)
  local owner_key, job = queue.base .. ":de:" .. wanted.id, queue.base .. ":" .. owner
  local known = hashes.read(job, "parentKey", "parent", "x.told")
  jobs.delete(job)
  journal.emit(queue, "removed", "jobId", owner, "prev", "delayed")
  tellDeduplicated(queue, gate, wanted.id, new_id, owner)
  if wanted.ttl and not wanted.extend and not wanted.keep_last then
    redis.call("SET", owner_key, new_id, "KEEPTTL")
  else
    own(owner_key, wanted, new_id)
  end
  redis.call("DEL", queue.base .. ":dn:" .. wanted.id)
  -- A flow may have made it a child since it was added: its parent must not wait for it for ever.
  if known.parentKey then parents.unlink(job, known.parentKey, known.parent, nil, known["x.told"]) end
end

--- Does a new job need a place in its lane that is full? Asked before anything is written: one that is
--- deduplicated enters no lane, and one that replaces a job of its lane takes that job's place.
function deduplication.hasNoRoom(queue, job)
  if not lanes.isFull(queue, job.lane, job.max_lane_size) then return false end
  if not job.de then return true end
  local owner_key = queue.base .. ":de:" .. job.de.id
  local owner = redis.call("GET", owner_key)
  if not owner or isStale(queue, owner_key, owner) then return true end
  if not job.de.replace or (job.de.keep_last and isActive(queue, owner)) then return false end
  if redis.call("ZSCORE", queue.delayed, owner) then return true end
  local lane = lanes.findDelayed(queue, owner)
  if not lane then return false end
  return laneNames.laneOf(lane) ~= laneNames.write(job.lane) or lanes.isFull(queue, job.lane, job.max_lane_size, -1)
end

--- `new` = { id, name, data, opts, delay, due, job, order_ms }, the job to be added.
function deduplication.claim(queue, gate, wanted, new)
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
      local lane = lanes.takeDelayed(queue, owner)
      if not lane then return owner end
      lanes.dropKept(queue, owner)
      lanes.release(queue, lane, owner)
    end
    replaceDelayed(queue, gate, wanted, owner, new.id)
    return nil
  end
  if wanted.ttl and wanted.extend then own(owner_key, wanted, owner) end
  tellDeduplicated(queue, gate, wanted.id, owner, new.id)
  if wanted.reschedule then putOff(queue, gate, owner, new) end
  return owner
end

--- The job that waits for its turn in `pending`, as `jobs.insert` takes it. If BullMQ left it there,
--- perhaps overwriting one of ours, its options say what it wants.
local function readPending(pending)
  local known = hashes.read(pending, "name", "data", "opts", "jid", "pk", "pd", "rjk", "x.job")
  if not known.name then return nil end
  local is_read, opts = pcall(cjson.decode, known.opts or "")
  if not is_read or type(opts) ~= "table" then opts = {} end
  local de = type(opts.de) == "table" and opts.de or {}
  local is_ours, job = pcall(cmsgpack.unpack, known["x.job"] or "")
  if not is_ours or type(job) ~= "table" or job.id ~= known.jid then
    job = { delay = tonumber(opts.delay), priority = tonumber(opts.priority),
      lifo = opts.lifo == true, lane = type(opts.lane) == "string" and opts.lane or nil,
      order_ms = tonumber(opts.orderMs), parent_key = known.pk, parent = known.pd or "{}" }
  end
  job.id, job.name, job.rjk = known.jid or job.id, known.name, known.rjk
  if job.parent_key and redis.call("EXISTS", job.parent_key) == 0 then job.parent_key = nil end
  local ttl = not de.keepLastIfActive and tonumber(de.ttl)
  return job, known.data or "{}", known.opts or "{}", ttl and ttl > 0 and ttl
end

--- A job that owns a deduplication id has ended. A key with a time to live outlasts it; otherwise the
--- id is free again, and the job that came last while this one was active gets its turn.
function deduplication.release(queue, gate, id, deduplication_id, now)
  local owner = queue.base .. ":de:" .. deduplication_id
  local pending = queue.base .. ":dn:" .. deduplication_id
  local holder = redis.call("GET", owner)
  -- Its time was up and another job took the id: the pending job waits for that one.
  if holder and holder ~= id then return end
  if holder and redis.call("PTTL", owner) == -1 then
    redis.call("DEL", owner)
  end
  local job, data, opts, ttl = readPending(pending)
  if not job then return end

  local counter = redis.call("INCR", queue.id)
  job.id, job.deid = job.id or tostring(counter), deduplication_id
  if redis.call("EXISTS", queue.base .. ":" .. job.id) == 1 then
    -- Somebody has used its id since it was set aside: as with any add, the existing job stays.
    redis.call("DEL", pending)
    journal.emitTrimmed(queue, gate, "duplicated", "jobId", job.id)
    return
  end
  if ttl then
    redis.call("SET", owner, job.id, "PX", ttl)
  else
    redis.call("SET", owner, job.id)
  end
  local place = jobs.insert(queue, gate, job, data, opts, now)
  arrivals.wake(queue, gate, { [place] = true })
  redis.call("DEL", pending)
end

--- A removed owner gives up its deduplication id, and the pending job goes with it.
function deduplication.forget(queue, id, deduplication_id)
  if not deduplication_id then return end
  local owner = queue.base .. ":de:" .. deduplication_id
  if redis.call("GET", owner) == id then
    redis.call("DEL", owner, queue.base .. ":dn:" .. deduplication_id)
  end
end
