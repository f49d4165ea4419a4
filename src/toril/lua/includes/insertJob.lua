--- @include "includes/lanes"
--- Write a new job and put it where it belongs: every way in but the dead letters' ends here. Returns "ready", "delayed", "lane" or "children" for
--- the place, so that the caller wakes workers once for many jobs; or nothing and the id of the job that
--- owns its deduplication id. A job with `deid` owns that id already; `rjk` names its scheduler.
local function insertJob(queue, gate, job, data, opts, now)
  local key = queue.base .. ":" .. job.id
  local timestamp = job.timestamp or now
  local priority = job.priority or 0
  local delay = job.run_at and math.max(0, job.run_at - now) or job.delay or 0
  local due = job.run_at or timestamp + delay
  local order_ms = job.order_ms or now
  if job.ordering_delay then
    -- Late ones with an earlier order are waited for; a clock that is fast may be so by the window.
    due = math.max(due, math.min(order_ms, now + job.ordering_delay) + job.ordering_delay)
    delay = math.max(0, due - now)
  end
  if job.de then
    local owner = deduplicate(queue, gate, job.de,
      { id = job.id, name = job.name, data = data, opts = opts, delay = delay, due = due, job = job,
        order_ms = order_ms })
    if owner then return nil, owner end
  end
  -- Its place first: when that key is damaged the script ends here, before there is a job that
  -- exists and will never run.
  local lane = job.lane and newPlace(queue, job.lane, order_ms)
  if job.has_children then
    redis.call("ZADD", queue.waiting_children, timestamp, job.id)
  elseif lane then
    addToLane(queue, job.id, lane, delay > 0 and due)
  elseif delay > 0 then
    placeDelayed(queue, job.id, due)
  else
    placeReady(queue, gate, job.id, priority, job.lifo and "RPUSH" or "LPUSH")
  end
  if job.parent_key then
    redis.call("HSET", key, "name", job.name, "data", data, "opts", opts, "timestamp",
      stamp(timestamp), "delay", digits(delay), "priority", digits(priority), "parentKey", job.parent_key, "parent", job.parent)
    redis.call("SADD", job.parent_key .. ":dependencies", key)
    if lane then redis.call("HSET", key, "x.lane", lane) end
  elseif job.group then
    redis.call("HSET", key, "name", job.name, "data", data, "opts", opts, "timestamp",
      stamp(timestamp), "delay", digits(delay), "priority", digits(priority), "x.group", job.group)
    if lane then redis.call("HSET", key, "x.lane", lane) end
  elseif lane then
    redis.call("HSET", key, "name", job.name, "data", data, "opts", opts, "timestamp",
      stamp(timestamp), "delay", digits(delay), "priority", digits(priority), "x.lane", lane)
  else
    redis.call("HSET", key, "name", job.name, "data", data, "opts", opts, "timestamp",
      stamp(timestamp), "delay", digits(delay), "priority", digits(priority))
  end
  local deduplication_id = job.deid or job.de and job.de.id
  if deduplication_id then redis.call("HSET", key, "deid", deduplication_id) end
  if job.rjk then redis.call("HSET", key, "rjk", job.rjk) end
  emit(queue, "added", "jobId", job.id, "name", job.name)
  if job.has_children then
    emitTrimmed(queue, gate, "waiting-children", "jobId", job.id)
    return "children"
  end
  if delay > 0 then
    emitTrimmed(queue, gate, "delayed", "jobId", job.id, "delay", due)
    return lane and "lane" or "delayed"
  end
  emitTrimmed(queue, gate, "waiting", "jobId", job.id)
  return lane and "lane" or "ready"
end
