#!lua
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
            flight str?, request str?, is_late bool? (includes/numbered.lua)
            After the map, raw: the data, the options of an iteration, the options of the template ("" for
            none).
  Returns   the id of the iteration, its delay, now ms
  Refuses   -10  the job of this time exists already                      SchedulerConflictError
            -11  the jobs of the next 32 times exist already              SchedulerConflictError
  Emits     added, waiting, delayed
  Keeps     I1, I5
  Cost      O(1), and the length of `wait` if the pending iteration is there
]]
local base, wait, paused, active, prioritized, pc, delayed, marker, meta, id, events, repeat_, scheduler = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/deleteJob"
--- @include "includes/schedule"
--- @include "includes/numbered"

local MOST_SLOTS = 32
local data = ARGV[2]
local iteration_opts = ARGV[3]
local template_opts = ARGV[4]
local queue = queueAt(base)
local now = clock()

local function exists(at)
  return redis.call("EXISTS", base .. ":" .. iterationId(a.scheduler_id, at)) == 1
end

local function placeOfPending(pending)
  if redis.call("ZSCORE", delayed, pending) then return "ZREM", delayed end
  if redis.call("ZSCORE", prioritized, pending) then return "ZREM", prioritized end
  if redis.call("LPOS", wait, pending) then return "LREM", wait end
  if redis.call("LPOS", paused, pending) then return "LREM", paused end
  local lane = redis.call("HGET", base .. ":" .. pending, "x.lane")
  if lane and waitsInLane(queue, lane, pending) then return "lane", lane end
  return nil
end

local function upsert()
  local previous = tonumber(redis.call("ZSCORE", repeat_, a.scheduler_id))
  local known = redis.call("HMGET", scheduler, "every", "ic")
  local is_same_every = a.every and tonumber(known[1]) == a.every

  local pending = previous and iterationId(a.scheduler_id, previous)
  local how, place
  if pending and exists(previous) then how, place = placeOfPending(pending) end

  local at = a.next_ms
  if a.every then
    if place and is_same_every then
      at = previous
    elseif is_same_every then
      at = slotAfter(previous or now, now, a.every, a.offset or 0)
    else
      at = firstSlot(now, a.every, a.offset or 0, a.start)
    end
  end
  local is_replaced = place and at == previous
  if exists(at) and not is_replaced then
    if not a.every then return -10 end
    local tries = 0
    repeat
      at = at + a.every
      tries = tries + 1
    until tries == MOST_SLOTS or not exists(at)
    if tries == MOST_SLOTS then return -11 end
  end

  if place then
    if how == "lane" then
      pullFromLane(queue, place, pending)
    elseif how == "ZREM" then
      redis.call("ZREM", place, pending)
    else
      redis.call("LREM", place, 1, pending)
    end
    deleteJob(base .. ":" .. pending)
  end

  local offset = a.offset or 0
  if a.every and offset == 0 then offset = at % a.every end
  redis.call("ZADD", repeat_, at, a.scheduler_id)
  redis.call("DEL", scheduler)
  redis.call("HSET", scheduler, "name", a.name)
  if #a.fields > 0 then redis.call("HSET", scheduler, unpack(a.fields)) end
  redis.call("HSET", scheduler, "offset", offset)
  if template_opts ~= "" then redis.call("HSET", scheduler, "opts", template_opts) end
  if data ~= "{}" then redis.call("HSET", scheduler, "data", data) end
  redis.call("HSET", scheduler, "ic", known[2] or 1)

  local job_id, delay = insertIteration(queue, readGate(queue), { scheduler = a.scheduler_id,
    id_json = a.id_json, name = a.name, data = data, opts = iteration_opts, priority = a.priority,
    lifo = a.lifo, is_cron = not a.every, lane = a.lane,
    ordering_delay = a.ordering_delay }, at, now)
  return { job_id, delay, now }
end

return makeOnce(queue, a, now, upsert)
