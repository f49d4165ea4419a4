--[[
  advanceScheduler: add the scheduler's iteration that comes after the one just taken.

  Only the pending iteration advances its scheduler, so retries, old iterations and a second worker
  change nothing. A time is passed over if its job exists already (the clock may have been ahead, or an
  earlier scheduler had this id): nobody else would bring the schedule back.

  Keys      base, wait, paused, active, prioritized, pc, delayed, marker, meta, id, events, repeat,
            scheduler
  Args      scheduler_id str, id_json str (the beginning of an iteration's id as JSON), job_id str (the
            iteration that was taken), name str, every int?, next_ms int? (when it is a cron
            pattern), taken_ms int? (what an earlier call returned), end_ms int? (nothing is due after it), priority int, lifo bool, lane str?,
            ordering_delay int?
            After the map, raw: the options of an iteration.
  Returns   the id of the new iteration; nothing if there is none; or, if the times that were tried are
            taken, the last of them: the caller asks again for what comes after it
  Emits     added, waiting, delayed, duplicated
  Keeps     I1, I5
  Flags     allow-oom
  Cost      O(1)
]]
function calls.advanceScheduler(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, pc, delayed, marker, meta, id, events, repeat_, scheduler = unpack(KEYS)
  local opts = ARGV[2]
  local queue = queues.at(base)
  local now = clock.now()
  local previous = tonumber(redis.call("ZSCORE", repeat_, a.scheduler_id))
  if not previous or a.job_id ~= schedules.iterationId(a.scheduler_id, previous) then return false end

  local known = hashes.read(scheduler, "every", "offset", "name", "data")
  local every = tonumber(known.every) or a.every
  local at = a.next_ms
  if every then
    at = schedules.slotAfter(math.max(previous, a.taken_ms or 0), now, every, tonumber(known.offset) or 0)
  end
  if not at then return false end

  local gate = gates.read(queue)
  local next_id = schedules.iterationId(a.scheduler_id, at)
  local free, taken = schedules.freeSlot(queue, a.scheduler_id, every, at)
  if a.end_ms and (free or taken) > a.end_ms then return false end
  if free ~= at then
    journal.emitTrimmed(queue, gate, "duplicated", "jobId", next_id)
    if taken then return taken end
    at, next_id = free, schedules.iterationId(a.scheduler_id, free)
  end
  redis.call("ZADD", repeat_, at, a.scheduler_id)
  redis.call("HINCRBY", scheduler, "ic", 1)
  schedules.insert(queue, gate, { scheduler = a.scheduler_id, id_json = a.id_json,
    name = known.name or a.name, data = known.data or "{}", opts = opts, priority = a.priority,
    lifo = a.lifo, is_cron = not every, lane = a.lane, ordering_delay = a.ordering_delay }, at, now)
  return next_id
end
