--- The slots of a scheduler that runs every so many ms.

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

--- When the iteration after `previous` is due. Missed ones are not made up for: the next is on the
--- grid again.
function schedules.slotAfter(previous, now, every, offset)
  local slot = previous + every
  if slot < now then return alignedAfter(now, every, offset) end
  return slot
end

function schedules.iterationId(scheduler, at)
  return "repeat:" .. scheduler .. ":" .. string.format("%.0f", at)
end

--- Add the iteration of a scheduler that is due at `at`. `opts` is the JSON of its options without
--- those that depend on the time; `is_cron` has them tell when this one is.
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
