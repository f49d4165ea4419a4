--[[
  remove: remove a job and, if asked, its children and theirs, leaves first.

  A family that fits into one call is removed entirely or not at all. A larger one is removed a slice
  at a time: whole subtrees first, the job itself last, so that calling again continues. A parent that
  is being removed is not released when its last child is gone.

  Keys      base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed,
            stalled, marker, meta, events, repeat
  Args      id str, children bool, slice int, flight str?, request str?, is_late bool? (rooms/requests.lua)
  Returns   more (0 or 1), whether there was such a job (0 or 1)
  Refuses   SCHEDULED           it is the pending iteration of a scheduler   SchedulerOwnsJobError
            LOCKED              a worker holds it or one of its children   JobLockedError
  Emits     removed, waiting
  Keeps     I1, I2, I4
  Flags     allow-oom
  Cost      O(slice), and the length of `wait` for each job that is removed from it
]]
--- Other keys (parts of a job, a scheduler) have names like those of jobs whose ids contain colons.
local function isAnotherKey(queue, id)
  if not string.find(id, ":", 1, true) then return false end
  local job = queue.base .. ":" .. id
  local kind = redis.call("TYPE", job).ok
  if kind == "none" then return false end
  if kind ~= "hash" then return true end
  local scheduler = string.match(id, "^repeat:(.+)$")
  return scheduler and redis.call("ZSCORE", queue["repeat"], scheduler) ~= false
    or redis.call("HEXISTS", job, "name") + redis.call("HEXISTS", job, "data") == 0
end

local function removeSlice(queue, a)
  if isAnotherKey(queue, a.id) then return { 0, 0 } end
  if schedules.isNextIteration(queue, a.id) then return refusals.SCHEDULED end
  local refusal, is_whole, existed = removals.remove(queue, a.id, a.children, a.slice)
  if refusal then return refusal end
  if not is_whole then return { 1, 1 } end
  return { 0, existed and 1 or 0 }
end

function calls.remove(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed, stalled, marker, meta, events, repeat_ = unpack(KEYS)
  local queue = queues.at(base)
  return requests.makeOnce(queue, a, clock.now(), function() return removeSlice(queue, a) end)
end
