--[[
  pauseScheduler: stop a scheduler from creating jobs until it is resumed.

  Its pending iteration is removed if it waits. If a worker has just taken it, it runs, but creates no
  next one: the scheduler no longer counts on it. What the record needs to resume later stays in it
  (rooms/schedules.lua).

  Keys      base, wait, paused, active, prioritized, delayed, marker, meta, events, repeat, scheduler
  Args      scheduler_id str
  Returns   1 if it is paused now, 0 if there is no such scheduler
  Emits     removed
  Keeps     I1
  Cost      O(1), and the length of `wait` if the pending iteration is there
]]
function calls.pauseScheduler(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, delayed, marker, meta, events, repeat_, scheduler = unpack(KEYS)
  local queue, now = queues.at(base), clock.now()
  local at = tonumber(redis.call("ZSCORE", repeat_, a.scheduler_id))
  local known = hashes.read(scheduler, "ic", "x.paused")
  if not at or not known.ic then return 0 end
  if known["x.paused"] then return 1 end
  local pending = schedules.pendingOf(queue, a.scheduler_id, at)
  local opts = redis.call("HGET", base .. ":" .. pending.id, "opts")
  if pending.place then
    schedules.takeOut(queue, pending)
    journal.emit(queue, "removed", "jobId", pending.id, "prev", "delayed")
  else
    redis.call("HSET", scheduler, "x.ran", "1")
  end
  if opts then redis.call("HSET", scheduler, "x.pending", opts) end
  redis.call("HSET", scheduler, "x.paused", clock.stamp(now))
  redis.call("ZADD", repeat_, "0", a.scheduler_id)
  return 1
end
