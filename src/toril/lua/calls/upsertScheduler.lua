--[[
  upsertScheduler: create or change a scheduler, and add its next iteration.

  The pending iteration is replaced. If only the template changes, the scheduler keeps its slot; if it
  was paused, it runs again. A call that is sent again because its reply was lost gets the same reply and changes nothing.

  Keys      base, wait, paused, active, prioritized, pc, delayed, marker, meta, id, events, repeat,
            scheduler
  Args      scheduler_id str, id_json str (the beginning of an iteration's id as JSON), name str,
            fields list of str (the definition: names and values in turn, without name, offset, opts,
            data), every int?, offset int?, start int?, next_ms int? (when it is a cron pattern),
            end_ms int? (nothing is due after it), priority int, lifo bool, lane str?, ordering_delay int?,
            flight str?, request str?, is_late bool? (rooms/requests.lua)
            After the map, raw: the data, the options of an iteration, the options of the template ("" for
            none).
  Returns   the id of the iteration, its delay, now ms
  Refuses   TIME_TAKEN          the job for this time already exists   SchedulerConflictError
            TIMES_TAKEN         the jobs for the next 32 times already exist   SchedulerConflictError
            AFTER_END           its next time is after its end   InvalidOptionError
  Emits     added, waiting, delayed
  Keeps     I1, I5
  Cost      O(1), and the length of `wait` if the pending iteration is there
]]
--- When the next iteration is due, before it is known whether that time is free.
local function wantedSlot(a, pending, is_same_every, now)
  if not a.every then return a.next_ms end
  if is_same_every and pending.place then return pending.at end
  local offset = a.offset or 0
  if is_same_every then return schedules.slotAfter(pending.at or now, now, a.every, offset) end
  return schedules.firstSlot(now, a.every, offset, a.start)
end

local function upsert(queue, scheduler, a, words, now)
  local previous = tonumber(redis.call("ZSCORE", queue["repeat"], a.scheduler_id))
  local known = hashes.read(scheduler, "every", "ic")
  local pending = schedules.pendingOf(queue, a.scheduler_id, previous)
  local is_same_every = a.every and tonumber(known.every) == a.every
  local at, refusal = schedules.slotFor(queue, a, pending, wantedSlot(a, pending, is_same_every, now))
  if refusal then return refusal end
  if a.end_ms and at > a.end_ms then return refusals.AFTER_END end
  schedules.takeOut(queue, pending)
  schedules.write(queue["repeat"], scheduler, a, at, known.ic or 1, words.data, words.template_opts)
  local job_id, delay = schedules.insert(queue, gates.read(queue), { scheduler = a.scheduler_id,
    id_json = a.id_json, name = a.name, data = words.data, opts = words.iteration_opts,
    priority = a.priority, lifo = a.lifo, is_cron = not a.every, lane = a.lane,
    ordering_delay = a.ordering_delay }, at, now)
  return { job_id, delay, now }
end

function calls.upsertScheduler(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, pc, delayed, marker, meta, id, events, repeat_, scheduler = unpack(KEYS)
  local data = ARGV[2]
  local iteration_opts = ARGV[3]
  local template_opts = ARGV[4]
  local queue, now = queues.at(base), clock.now()
  local words = { data = data, iteration_opts = iteration_opts, template_opts = template_opts }
  return requests.makeOnce(queue, a, now, function()
    return upsert(queue, scheduler, a, words, now)
  end)
end
