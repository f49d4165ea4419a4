#!lua flags=allow-oom
--[[
  advanceScheduler: add the iteration of a scheduler that comes after the one just taken.

  Only the pending iteration advances its scheduler, so retries, old iterations and a second worker
  change nothing.

  Keys      base, wait, paused, active, prioritized, pc, delayed, marker, meta, id, events, repeat,
            scheduler
  Args      scheduler_id str, id_json str (the beginning of an iteration's id as JSON), job_id str (the
            iteration that was taken), name str, every int?, next_ms int? (when it is a cron
            pattern), priority int, lifo bool, lane str?, ordering_delay int?
            After the map, raw: the options of an iteration.
  Returns   the id of the new iteration, or nothing
  Emits     added, waiting, delayed, duplicated
  Keeps     I1, I5
  Cost      O(1)
]]
local base, wait, paused, active, prioritized, pc, delayed, marker, meta, id, events, repeat_, scheduler = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/schedule"

local opts = ARGV[2]
local queue = queueAt(base)
local now = clock()
local previous = tonumber(redis.call("ZSCORE", repeat_, a.scheduler_id))
if not previous or a.job_id ~= iterationId(a.scheduler_id, previous) then return false end

local known = redis.call("HMGET", scheduler, "every", "offset", "name", "data")
local every = tonumber(known[1]) or a.every
local at = a.next_ms
if every then
  at = slotAfter(previous, now, every, tonumber(known[2]) or 0)
end
if not at then return false end

local gate = readGate(queue)
local next_id = iterationId(a.scheduler_id, at)
if redis.call("EXISTS", base .. ":" .. next_id) == 1 then
  emitTrimmed(queue, gate, "duplicated", "jobId", next_id)
  return false
end
redis.call("ZADD", repeat_, at, a.scheduler_id)
redis.call("HINCRBY", scheduler, "ic", 1)
insertIteration(queue, gate, { scheduler = a.scheduler_id, id_json = a.id_json,
  name = known[3] or a.name, data = known[4] or "{}", opts = opts, priority = a.priority,
  lifo = a.lifo, is_cron = not every, lane = a.lane, ordering_delay = a.ordering_delay }, at, now)
return next_id
