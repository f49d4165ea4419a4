--[[
  changePriority: give a job another priority, and move it to the matching place if it is waiting.

  Keys      base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, failed,
            marker, meta, job
  Args      id str, call str, priority int, is_lifo bool
  Returns   0
  Refuses   MISSING             the job does not exist   JobNotFoundError
  Keeps     I1
  Flags     allow-oom
  Cost      O(1); O(waiting jobs) for a job without a priority
]]
function calls.changePriority(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, failed, marker, meta, job = unpack(KEYS)
  local queue = queues.at(base)
  if requests.wasMade(queue, a.call) then return 0 end
  if redis.call("EXISTS", job) == 0 then return refusals.MISSING end

  local function isElsewhere()
    for _, place in ipairs({ delayed, waiting_children, completed, failed }) do
      if redis.call("ZSCORE", place, a.id) then return true end
    end
    return redis.call("EXISTS", job .. ":lock") == 1
  end

  local function leaveWaiting()
    if redis.call("ZREM", prioritized, a.id) == 1 then return true end
    if isElsewhere() then return false end
    return redis.call("LREM", wait, 1, a.id) == 1 or redis.call("LREM", paused, 1, a.id) == 1
  end

  requests.remember(queue, a.call)
  if leaveWaiting() then
    local gate = gates.read(queue)
    if a.is_lifo then
      places.first(queue, gate, a.id, a.priority)
    else
      places.ready(queue, gate, a.id, a.priority)
    end
    places.wake(queue, gate)
  end
  redis.call("HSET", job, "priority", a.priority)
  return 0
end
