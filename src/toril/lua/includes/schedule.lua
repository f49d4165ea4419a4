--- @lazily
--- @include "includes/lanes"
--- The slots of a scheduler that runs every so many ms.

--- The first slot of a grid that is later than `now`.
local function alignedAfter(now, every, offset)
  local slot = math.floor(now / every) * every + offset
  return slot > now and slot or slot + every
end

--- When the first iteration is due.
local function firstSlot(now, every, offset, start)
  if start then return math.max(start, now) end
  if offset > 0 then return alignedAfter(now, every, offset) end
  return now
end

--- When the iteration after `previous` is due. Missed ones are not made up for: the next is on the
--- grid again.
local function slotAfter(previous, now, every, offset)
  local slot = previous + every
  if slot < now then return alignedAfter(now, every, offset) end
  return slot
end

local function iterationId(scheduler, at)
  return "repeat:" .. scheduler .. ":" .. string.format("%.0f", at)
end

--- Add the iteration of a scheduler that is due at `at`. `opts` is the JSON of its options without
--- those that depend on the time; `is_cron` has them tell when this one is.
--- `iteration` = { scheduler, id_json, name, data, opts, priority, lifo, is_cron, lane }. In a lane its
--- order is the time at which it is due.
local function insertIteration(queue, gate, iteration, at, now)
  local id = iterationId(iteration.scheduler, at)
  local delay = math.max(0, at - now)
  local head = string.format('{"jobId":%s%.0f","delay":%.0f,"timestamp":%.0f,', iteration.id_json, at,
    delay, now)
  if iteration.is_cron then
    head = head .. string.format('"prevMillis":%.0f,', at)
  end
  local opts = head .. string.sub(iteration.opts, 2)
  redis.call("INCR", queue.id)
  redis.call("HSET", queue.base .. ":" .. id, "name", iteration.name, "data", iteration.data,
    "opts", opts, "timestamp", now, "delay", delay, "priority", iteration.priority or 0,
    "rjk", iteration.scheduler)
  emit(queue, "added", "jobId", id, "name", iteration.name)
  local lane = iteration.lane and newPlace(queue, iteration.lane, at)
  if lane then
    redis.call("HSET", queue.base .. ":" .. id, "x.lane", lane)
    addToLane(queue, id, lane, delay > 0 and at)
  end
  if delay > 0 then
    if not lane then
      placeDelayed(queue, id, at)
      wakeWhenDue(queue)
    end
    emitTrimmed(queue, gate, "delayed", "jobId", id, "delay", at)
  else
    if not lane then
      placeReady(queue, gate, id, iteration.priority or 0, iteration.lifo and "RPUSH" or "LPUSH")
    end
    wake(queue, gate)
    emitTrimmed(queue, gate, "waiting", "jobId", id)
  end
  return id, delay
end
