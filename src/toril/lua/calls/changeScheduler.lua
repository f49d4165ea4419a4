--[[
  changeScheduler: change a scheduler whose record the caller has read, or resume it.

  Nothing happens if the record has changed since it was read: somebody else was faster, and the
  caller reads again. The pending iteration is replaced; if a worker has just taken it, the next one is
  created here. A call that is sent again because its reply was lost gets the same reply.

  Keys      base, wait, paused, active, prioritized, pc, delayed, marker, meta, id, events, repeat,
            scheduler
  Args      scheduler_id str, id_json str, name str, fields list of str, every int?, offset int?,
            start int?, next_ms int?, end_ms int?, priority int, lifo bool, lane str?, ordering_delay int? (all as in
            upsertScheduler), expected list of str (the names of the record's fields except
            `ic`), expected_at int (its score), stays_paused bool, is_resumed bool, keeps_every bool
            (the time of the pending iteration is kept), flight str?, request str?, is_late bool?
            (rooms/requests.lua)
            After the map, raw: the data, the options of the iteration that replaces the pending one,
            the options of the template ("" for none), the options of the iteration after the pending
            one (options are "" if there is none), and the values of the expected fields.
  Returns   the id of the iteration, or "" if there is none
  Refuses   MISSING             there is no such scheduler   SchedulerNotFoundError
            CHANGED             its record has changed   SchedulerConflictError
            TIME_TAKEN          the job for this time already exists   SchedulerConflictError
            TIMES_TAKEN         the jobs for the next 32 times already exist   SchedulerConflictError
  Emits     added, waiting, delayed
  Keeps     I1, I5
  Cost      O(1), and the length of `wait` if the pending iteration is there
]]
local function isAsRead(repeat_, scheduler, a, values)
  local at = tonumber(redis.call("ZSCORE", repeat_, a.scheduler_id))
  -- bounded: a record has about fifteen fields.
  local hash, record = redis.call("HGETALL", scheduler), {}
  if not at or #hash == 0 then return false, refusals.MISSING end
  if at ~= a.expected_at or #hash / 2 ~= #a.expected + 1 then return false, refusals.CHANGED end
  for i = 1, #hash, 2 do record[hash[i]] = hash[i + 1] end
  for i, name in ipairs(a.expected) do
    if record[name] ~= values[i] then return false, refusals.CHANGED end
  end
  return true
end

local PAUSED = { "x.paused", "x.pending", "x.ran" }

--- Change the record of a paused scheduler, and leave it paused.
local function rewritePaused(repeat_, scheduler, a, words, known)
  schedules.write(repeat_, scheduler, a, 0, known.ic, words.data, words.template_opts)
  if words.iteration_opts ~= "" then known["x.pending"] = words.iteration_opts end
  for _, name in ipairs(PAUSED) do
    if known[name] then redis.call("HSET", scheduler, name, known[name]) end
  end
end

--- When the next iteration is due. A new interval counts from now; a resumed one returns to its grid.
local function wantedSlot(a, pending, now)
  if not a.every then return a.next_ms end
  if a.start and a.start > now then return a.start end
  if a.is_resumed then return schedules.slotAfter(0, now, a.every, a.offset or 0) end
  if not a.keeps_every then return now + a.every end
  return pending.place and pending.at or schedules.slotAfter(pending.at, now, a.every, a.offset or 0)
end

local function change(queue, repeat_, scheduler, a, words, now)
  local is_as_read, refusal = isAsRead(repeat_, scheduler, a, words.expected)
  if not is_as_read then return refusal end
  local known = hashes.read(scheduler, "ic", unpack(PAUSED))
  if a.stays_paused then
    rewritePaused(repeat_, scheduler, a, words, known)
    return ""
  end
  local pending = schedules.pendingOf(queue, a.scheduler_id, a.expected_at)
  local is_new = not pending.place and not (a.is_resumed and not known["x.ran"])
  local opts = is_new and words.next_opts or words.iteration_opts
  local at = a.expected_at
  if opts ~= "" then
    local wanted
    wanted, refusal = schedules.slotFor(queue, a, pending, wantedSlot(a, pending, now))
    if refusal then return refusal end
    if a.end_ms and wanted > a.end_ms then
      opts = ""
    else
      at = wanted
    end
  end
  schedules.takeOut(queue, pending)
  local iterations = (tonumber(known.ic) or 0) + (is_new and opts ~= "" and 1 or 0)
  schedules.write(repeat_, scheduler, a, at, iterations, words.data, words.template_opts)
  if opts == "" then return "" end
  return (schedules.insert(queue, gates.read(queue), { scheduler = a.scheduler_id, id_json = a.id_json,
    name = a.name, data = words.data, opts = opts, priority = a.priority, lifo = a.lifo,
    is_cron = not a.every, lane = a.lane, ordering_delay = a.ordering_delay }, at, now))
end

function calls.changeScheduler(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, pc, delayed, marker, meta, id, events, repeat_, scheduler = unpack(KEYS)
  local data = ARGV[2]
  local iteration_opts = ARGV[3]
  local template_opts = ARGV[4]
  local next_opts = ARGV[5]
  local queue, now = queues.at(base), clock.now()
  local words = { data = data, iteration_opts = iteration_opts, template_opts = template_opts,
    next_opts = next_opts, expected = { unpack(ARGV, 6) } }
  return requests.makeOnce(queue, a, now, function()
    return change(queue, repeat_, scheduler, a, words, now)
  end)
end
