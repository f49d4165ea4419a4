--[[
  removeScheduler: forget a scheduler, and its next iteration if that is still delayed.

  Keys      base, active, delayed, marker, meta, paused, events, repeat, scheduler
  Args      scheduler_id str, flight str?, request str?, is_late bool? (rooms/requests.lua)
  Returns   1 if there was such a scheduler, else 0
  Emits     removed
  Keeps     I1, I4
  Flags     allow-oom
  Cost      O(1)
]]
local function remove(queue, a)
  local base, delayed = queue.base, queue.delayed
  local repeat_, scheduler = queue["repeat"], queue["repeat"] .. ":" .. a.scheduler_id

  local function takeOutPending(pending)
    if redis.call("ZREM", delayed, pending) == 1 then return true end
    local lane = lanes.takeDelayed(queue, pending)
    if lane then
      lanes.dropKept(queue, pending)
      lanes.release(queue, lane, pending)
    end
    return lane ~= nil
  end

  local at = redis.call("ZSCORE", repeat_, a.scheduler_id)
  if at then
    local pending = "repeat:" .. a.scheduler_id .. ":" .. at
    if not schedules.hasRun(base .. ":" .. pending) and takeOutPending(pending) then
      jobs.delete(base .. ":" .. pending)
      journal.emit(queue, "removed", "jobId", pending, "prev", "delayed")
    end
  end
  local was_indexed = redis.call("ZREM", repeat_, a.scheduler_id) == 1
  local was_stored = redis.call("DEL", scheduler) == 1
  return (was_indexed or was_stored) and 1 or 0
end

function calls.removeScheduler(KEYS, a, ARGV)
  local base, active, delayed, marker, meta, paused, events, repeat_, scheduler = unpack(KEYS)
  local queue = queues.at(base)
  return requests.makeOnce(queue, a, clock.now(), function() return remove(queue, a) end)
end
