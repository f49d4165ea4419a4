--- @lazily
--- @include "includes/lanes"
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
  local nxt = redis.call("HMGET", pending, "name", "data", "opts", "jid", "pk", "pd", "pdk", "rjk")
  if not nxt[1] then return end

  local counter = redis.call("INCR", queue.id)
  local next_id = nxt[4] or tostring(counter)
  local job = queue.base .. ":" .. next_id
  if redis.call("EXISTS", job) == 1 then
    -- Somebody has used its id since it was put aside: as with any add, the job that is there stays.
    redis.call("DEL", pending)
    emitTrimmed(queue, gate, "duplicated", "jobId", next_id)
    return
  end
  local is_read, opts = pcall(cjson.decode, nxt[3] or "")
  if not is_read or type(opts) ~= "table" then opts = {} end
  local delay, priority = tonumber(opts.delay) or 0, tonumber(opts.priority) or 0
  local ttl = opts.de and tonumber(opts.de.ttl)
  if ttl and ttl > 0 and not opts.de.keepLastIfActive then
    redis.call("SET", owner, next_id, "PX", ttl)
  else
    redis.call("SET", owner, next_id)
  end
  local fields = { "name", nxt[1], "data", nxt[2], "opts", nxt[3], "timestamp", now,
    "delay", delay, "priority", priority }
  if nxt[5] then
    for _, word in ipairs({ "parentKey", nxt[5], "parent", nxt[6] }) do
      fields[#fields + 1] = word
    end
  end
  if nxt[8] then
    fields[#fields + 1] = "rjk"
    fields[#fields + 1] = nxt[8]
  end
  fields[#fields + 1] = "deid"
  fields[#fields + 1] = deduplication_id
  redis.call("HSET", job, unpack(fields))
  emit(queue, "added", "jobId", next_id, "name", nxt[1])
  if opts.lane then
    local lane = newPlace(queue, opts.lane, tonumber(opts.orderMs) or now)
    redis.call("HSET", job, "x.lane", lane)
    addToLane(queue, next_id, lane, delay > 0 and now + delay)
    wakeForLanes(queue, gate)
    if delay > 0 then
      emitTrimmed(queue, gate, "delayed", "jobId", next_id, "delay", now + delay)
    else
      emitTrimmed(queue, gate, "waiting", "jobId", next_id)
    end
  elseif delay > 0 then
    placeDelayed(queue, next_id, now + delay)
    emitTrimmed(queue, gate, "delayed", "jobId", next_id, "delay", now + delay)
    wakeWhenDue(queue)
  else
    placeReady(queue, gate, next_id, priority, opts.lifo and "RPUSH" or "LPUSH")
    wake(queue, gate)
    emitTrimmed(queue, gate, "waiting", "jobId", next_id)
  end
  if nxt[7] then
    redis.call("SADD", nxt[7], job)
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
