--[[
  advanceScheduler: add the scheduler's iteration that comes after the one just taken.

  Only the pending iteration advances its scheduler, so retries, old iterations and a second worker
  change nothing.

  Keys      base, wait, paused, active, prioritized, pc, delayed, marker, meta, id, events, repeat,
            scheduler
  Args      scheduler_id str, id_json str (the beginning of an iteration's id as JSON), job_id str (the
            iteration that was taken), name str, every int?, next_ms int? (when it is a cron
            pattern), end_ms int? (nothing is due after it), priority int, lifo bool, lane str?,
            ordering_delay int?
            After the map, raw: the options of an iteration.
  Returns   the id of the new iteration, or nothing
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
    at = schedules.slotAfter(previous, now, every, tonumber(known.offset) or 0)
  end
  if not at or a.end_ms and at > a.end_ms then return false end

  local gate = gates.read(queue)
  local next_id = schedules.iterationId(a.scheduler_id, at)
  if redis.call("EXISTS", base .. ":" .. next_id) == 1 then
    journal.emitTrimmed(queue, gate, "duplicated", "jobId", next_id)
    return false
  end
  redis.call("ZADD", repeat_, at, a.scheduler_id)
  redis.call("HINCRBY", scheduler, "ic", 1)
  schedules.insert(queue, gate, { scheduler = a.scheduler_id, id_json = a.id_json,
    name = known.name or a.name, data = known.data or "{}", opts = opts, priority = a.priority,
    lifo = a.lifo, is_cron = not every, lane = a.lane, ordering_delay = a.ordering_delay }, at, now)
  return next_id
end
