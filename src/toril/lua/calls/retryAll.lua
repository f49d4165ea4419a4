--[[
  retryAll: let finished jobs run again, a slice at a time, the oldest first.

  Only jobs that finished up to a given time: the first call uses the current time, and the caller
  passes it on. A job that fails again meanwhile is not retried twice. Members stay if their group is
  over, is being undone or counts them as completed, unless `force` is given; the caller skips them.

  Keys      base, wait, paused, active, prioritized, pc, waiting_children, completed, failed, marker, meta, events
  Args      state str ("failed" or "completed"), until_ms int?, slice int, skip int,
            resets_attempts bool, force bool?,
            flight str?, request str?, is_late bool? (rooms/requests.lua)
  Returns   that time in ms, how many were examined, how many run again, how many of them stay
  Emits     waiting, waiting-children
  Keeps     I1, I4
  Flags     allow-oom
  Cost      O(slice)
]]
local function retrySlice(queue, a)
  local base, completed, failed = queue.base, queue.completed, queue.failed
  local gate = gates.read(queue)
  local until_ms = a.until_ms or clock.now()
  local place = a.state == "failed" and failed or completed
  local ids = redis.call("ZRANGEBYSCORE", place, "-inf", until_ms, "LIMIT", a.skip, a.slice)
  local count, leaving = 0, {}

  local function retryOne(id)
    local membership = not a.force and redis.call("HGET", base .. ":" .. id, "x.group")
    if membership then
      if a.state == "completed" or groups.stateOf(membership, base .. ":" .. id, true) ~= "ACTIVE" then return end
    end
    if jobs.retry(queue, gate, id, a.state, a.resets_attempts) then count = count + 1 end
    leaving[#leaving + 1] = id
  end

  for _, id in ipairs(ids) do
    local is_sound, problem = pcall(retryOne, id)
    -- A damaged job stays where it is.
    if not is_sound then damage.of(queue, problem) end
  end
  if #leaving > 0 then
    redis.call("ZREM", place, unpack(leaving))
    places.wake(queue, gate)
  end
  return { until_ms, #ids, count, #ids - #leaving }
end

function calls.retryAll(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, pc, waiting_children, completed, failed, marker, meta, events = unpack(KEYS)
  local queue = queues.at(base)
  return requests.makeOnce(queue, a, clock.now(), function() return retrySlice(queue, a) end)
end
