--[[
  upsertScheduler: make or change a scheduler, and add its next iteration.

  The iteration that was pending is replaced. A scheduler of which only the template changes keeps its
  slot. A call that comes again, because its reply was lost, gets the same reply and changes nothing.

  Keys      base, wait, paused, active, prioritized, pc, delayed, marker, meta, id, events, repeat,
            scheduler
  Args      scheduler_id str, id_json str (the beginning of an iteration's id as JSON), name str,
            fields list of str (the definition: names and values in turn, without name, offset, opts,
            data), every int?, offset int?, start int?, next_ms int? (when it is a cron pattern),
            priority int, lifo bool, lane str?, ordering_delay int?,
            flight str?, request str?, is_late bool? (rooms/requests.lua)
            After the map, raw: the data, the options of an iteration, the options of the template ("" for
            none).
  Returns   the id of the iteration, its delay, now ms
  Refuses   TIME_TAKEN          the job of this time exists already   SchedulerConflictError
            TIMES_TAKEN         the jobs of the next 32 times exist already   SchedulerConflictError
  Emits     added, waiting, delayed
  Keeps     I1, I5
  Cost      O(1), and the length of `wait` if the pending iteration is there
]]
local MOST_SLOTS = 32

local function exists(queue, scheduler_id, at)
  return redis.call("EXISTS", queue.base .. ":" .. schedules.iterationId(scheduler_id, at)) == 1
end

--- How the pending iteration is taken out of its place, and which that is; nothing if it waits nowhere.
local function placeOf(queue, pending)
  for _, set in ipairs({ queue.delayed, queue.prioritized }) do
    if redis.call("ZSCORE", set, pending) then return "ZREM", set end
  end
  for _, list in ipairs({ queue.wait, queue.paused }) do
    if redis.call("LPOS", list, pending) then return "LREM", list end
  end
  local lane = redis.call("HGET", queue.base .. ":" .. pending, "x.lane")
  if lane and lanes.hasWaiting(queue, lane, pending) then return "lane", lane end
  return nil
end

local function takeOut(queue, how, place, pending)
  if how == "lane" then
    lanes.pull(queue, place, pending)
  elseif how == "ZREM" then
    redis.call("ZREM", place, pending)
  else
    redis.call("LREM", place, 1, pending)
  end
  jobs.delete(queue.base .. ":" .. pending)
end

--- When the next iteration is due, before it is known whether that time is free.
local function wantedSlot(a, previous, is_waiting, is_same_every, now)
  if not a.every then return a.next_ms end
  if is_same_every and is_waiting then return previous end
  local offset = a.offset or 0
  if is_same_every then return schedules.slotAfter(previous or now, now, a.every, offset) end
  return schedules.firstSlot(now, a.every, offset, a.start)
end

--- The first free time from `at` on; nothing and a refusal if there is none.
local function freeSlot(queue, a, at)
  if not exists(queue, a.scheduler_id, at) then return at end
  if not a.every then return nil, refusals.TIME_TAKEN end
  for _ = 1, MOST_SLOTS do
    at = at + a.every
    if not exists(queue, a.scheduler_id, at) then return at end
  end
  return nil, refusals.TIMES_TAKEN
end

local function writeScheduler(repeat_key, scheduler, a, at, iterations, data, opts)
  local offset = a.offset or 0
  if a.every and offset == 0 then offset = at % a.every end
  redis.call("ZADD", repeat_key, at, a.scheduler_id)
  redis.call("DEL", scheduler)
  redis.call("HSET", scheduler, "name", a.name)
  if #a.fields > 0 then redis.call("HSET", scheduler, unpack(a.fields)) end
  redis.call("HSET", scheduler, "offset", offset)
  if opts ~= "" then redis.call("HSET", scheduler, "opts", opts) end
  if data ~= "{}" then redis.call("HSET", scheduler, "data", data) end
  redis.call("HSET", scheduler, "ic", iterations)
end

local function upsert(queue, scheduler, a, words, now)
  local previous = tonumber(redis.call("ZSCORE", queue["repeat"], a.scheduler_id))
  local known = hashes.read(scheduler, "every", "ic")
  local pending = previous and schedules.iterationId(a.scheduler_id, previous)
  local how, place
  if pending and exists(queue, a.scheduler_id, previous) then how, place = placeOf(queue, pending) end
  local is_same_every = a.every and tonumber(known.every) == a.every
  local at = wantedSlot(a, previous, place ~= nil, is_same_every, now)
  if not (place and at == previous) then
    local refusal
    at, refusal = freeSlot(queue, a, at)
    if not at then return refusal end
  end
  if place then takeOut(queue, how, place, pending) end
  writeScheduler(queue["repeat"], scheduler, a, at, known.ic or 1, words.data, words.template_opts)
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
