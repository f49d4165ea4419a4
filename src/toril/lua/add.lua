#!lua
--[[
  add: put new jobs into the queue, each on its own.

  A call that comes again, because its reply was lost, gets the same reply and adds nothing: it is
  known by its flight and its number.

  Keys      base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed,
            marker, meta, id, events
  Args      jobs list of {id, name, custom, delay, run_at, priority, lifo, timestamp, parent_key,
            parent, de, once, lane, order_ms, ordering_delay, max_lane_size},
            keeps_order bool? (what follows a refused job in its lane is refused with it),
            flight str?, request str?, is_late bool? (includes/numbered.lua)
            A job with `once` ({key, ms}) is added at most once for that long, even when it has run
            and gone since: a relay that died before it wrote down what it did sends it again.
            After the map, raw, for each job: its data, its options as JSON.
  Returns   now ms, then for each job: 0 added, 1 an equal id exists, a refusal, or the id of the
            job that owns its deduplication id
  Refuses   -5  its parent does not exist                                 ParentNotFoundError
            -7  the job that exists has another parent                    ParentConflictError
            -121  its lane is full, or one before it found it so          LaneFullError
  Emits     added, waiting, delayed, duplicated, deduplicated, removed
  Keeps     I1, I4
  Cost      O(jobs)
]]
local base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, marker, meta, id, events = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/lanes"
--- @include "includes/parents"
--- @include "includes/deleteJob"
--- @include "includes/deduplicate"
--- @include "includes/insertJob"
--- @include "includes/numbered"
--- @include "includes/attachChild"
--- @include "includes/once"

local queue = queueAt(base)
local now = clock()
local gate = readGate(queue)
local places = {}
local counted = 0

--- A child that exists already is tied to the parent of the request.
local function attachExisting(job)
  if belongsElsewhere(queue, job) then return -7 end
  attachChild(queue, job)
  local parent = parentOf(job.parent_key, job.parent)
  if hasNoChildrenLeft(parent) then
    releaseParent(parent, now)
  end
  return 1
end

local function addJob(job, data, opts)
  if job.parent_key and redis.call("EXISTS", job.parent_key) == 0 then return -5 end
  if job.once and isRemembered(queue, job.id, job.once.key) then return 1 end
  counted = counted + 1
  if redis.call("EXISTS", base .. ":" .. job.id) == 1 then
    local result = job.parent_key and attachExisting(job) or 1
    if result == 1 then
      if job.once then rememberOnce(queue, job.id, job.once.key, job.once.ms) end
      emitTrimmed(queue, gate, "duplicated", "jobId", job.id)
    end
    return result
  end
  if job.max_lane_size and hasNoRoom(queue, job) then return -121 end
  local place, owner = insertJob(queue, gate, job, data, opts, now)
  if job.once then rememberOnce(queue, job.id, job.once.key, job.once.ms) end
  if owner then return owner end
  places[place] = true
  return 0
end

local function addAll()
  local results, are_all_added, full = { now }, true, {}
  queue.keeping = {}
  for i, job in ipairs(a.jobs) do
    local result = full[job.lane] or addJob(job, ARGV[2 * i], ARGV[2 * i + 1])
    results[i + 1] = result
    if a.keeps_order and result == -121 then full[job.lane] = result end
    are_all_added = are_all_added and result == 0
  end
  if counted > 0 then redis.call("INCRBY", queue.id, counted) end
  if places.ready then wake(queue, gate) end
  if places.delayed then wakeWhenDue(queue) end
  if #queue.keeping > 0 then keepCollected(queue) end
  if places.lane then wakeForLanes(queue, gate) end
  return results, are_all_added
end

local function allAdded(at)
  local results = { at }
  for i = 1, #a.jobs do results[i + 1] = 0 end
  return results
end

return makeOnce(queue, a, now, addAll, allAdded)
