--- @lazily
--- @include "includes/deleteJob"
--- @include "includes/deduplicate"
--- @include "includes/insertJob"

--- What waits for its turn in `pending`, as `insertJob` takes it. One that BullMQ left there, perhaps
--- over one of ours, says in its options what it wants.
local function readPending(pending)
  local known = redis.call("HMGET", pending, "name", "data", "opts", "jid", "pk", "pd", "rjk", "x.job")
  if not known[1] then return nil end
  local is_read, opts = pcall(cjson.decode, known[3] or "")
  if not is_read or type(opts) ~= "table" then opts = {} end
  local de = type(opts.de) == "table" and opts.de or {}
  local is_ours, job = pcall(cmsgpack.unpack, known[8] or "")
  if not is_ours or type(job) ~= "table" or job.id ~= known[4] then
    job = { delay = tonumber(opts.delay), priority = tonumber(opts.priority),
      lifo = opts.lifo == true, lane = type(opts.lane) == "string" and opts.lane or nil,
      order_ms = tonumber(opts.orderMs), parent_key = known[5], parent = known[6] or "{}" }
  end
  job.id, job.name, job.rjk = known[4] or job.id, known[1], known[7]
  if job.parent_key and redis.call("EXISTS", job.parent_key) == 0 then job.parent_key = nil end
  local ttl = not de.keepLastIfActive and tonumber(de.ttl)
  return job, known[2] or "{}", known[3] or "{}", ttl and ttl > 0 and ttl
end

--- The end of a job that owns a deduplication id. A key with a time to live outlasts it; else the
--- id is free again, and the job that came last while this one was active gets its turn.
local function releaseDeduplication(queue, gate, id, deduplication_id, now)
  local owner = queue.base .. ":de:" .. deduplication_id
  local pending = queue.base .. ":dn:" .. deduplication_id
  local holder = redis.call("GET", owner)
  -- Its time was over and another job took the id: what waits, waits for that one.
  if holder and holder ~= id then return end
  if holder and redis.call("PTTL", owner) == -1 then
    redis.call("DEL", owner)
  end
  local job, data, opts, ttl = readPending(pending)
  if not job then return end

  local counter = redis.call("INCR", queue.id)
  job.id, job.deid = job.id or tostring(counter), deduplication_id
  if redis.call("EXISTS", queue.base .. ":" .. job.id) == 1 then
    -- Somebody has used its id since it was put aside: as with any add, the job that is there stays.
    redis.call("DEL", pending)
    emitTrimmed(queue, gate, "duplicated", "jobId", job.id)
    return
  end
  if ttl then
    redis.call("SET", owner, job.id, "PX", ttl)
  else
    redis.call("SET", owner, job.id)
  end
  local place = insertJob(queue, gate, job, data, opts, now)
  if place == "lane" then
    wakeForLanes(queue, gate)
  elseif place == "delayed" then
    wakeWhenDue(queue)
  else
    wake(queue, gate)
  end
  redis.call("DEL", pending)
end

--- A removed owner gives its deduplication id back, and the pending job with it.
local function forgetDeduplication(queue, id, deduplication_id)
  if not deduplication_id then return end
  local owner = queue.base .. ":de:" .. deduplication_id
  if redis.call("GET", owner) == id then
    redis.call("DEL", owner, queue.base .. ":dn:" .. deduplication_id)
  end
end
