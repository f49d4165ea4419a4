--[[
  add: put new jobs into the queue, each independently of the others.

  A call that is sent again because its reply was lost gets the same reply and adds nothing: it is
  recognized by its flight and its number.

  Keys      base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed,
            marker, meta, id, events
  Args      jobs list of {id, name, delay, run_at, priority, lifo, timestamp, parent_key,
            parent, de, once, lane, order_ms, ordering_delay, max_lane_size},
            keeps_order bool? (what follows a refused job in its lane is refused with it),
            behind list of {lane, id, key}? (a job with `once` that an earlier call should have added: if
            it did not, this call's jobs in that lane are refused too),
            flight str?, request str?, is_late bool? (rooms/requests.lua)
            A job with `once` ({key, ms}) is added at most once in that time, even if it has since run
            and been removed: a relay that died before recording what it did sends it again.
            After the map, raw, for each job: its data, its options as JSON.
  Returns   now ms, then for each job: 0 added, 1 the id exists, a refusal, or the id of the
            job that owns its deduplication id
  Refuses   NO_PARENT           its parent does not exist   ParentNotFoundError
            OTHER_PARENT        the job that exists has another parent   ParentConflictError
            LANE_FULL           its lane is full, or was for a job before it   LaneFullError
  Emits     added, waiting, delayed, duplicated, deduplicated, removed
  Keeps     I1, I4
  Cost      O(jobs)
]]
--- A child that already exists is tied to the parent of the request.
local function attachExisting(queue, job, now)
  if parents.belongsElsewhere(queue, job) then return refusals.OTHER_PARENT end
  parents.attachChild(queue, job)
  local parent = parents.of(job.parent_key, job.parent)
  if parents.hasNoChildrenLeft(parent) then parents.release(parent, now) end
  return 1
end

local function addExisting(to, job, now)
  local result = job.parent_key and attachExisting(to.queue, job, now) or 1
  if result == 1 then
    if job.once then once.remember(to.queue, job.id, job.once.key, job.once.ms) end
    journal.emitTrimmed(to.queue, to.gate, "duplicated", "jobId", job.id)
  end
  return result
end

local function addJob(to, job, data, opts, now)
  local queue = to.queue
  if job.parent_key and redis.call("EXISTS", job.parent_key) == 0 then return refusals.NO_PARENT end
  if job.once and once.isRemembered(queue, job.id, job.once.key) then return 1 end
  to.count = to.count + 1
  if not to.are_new and redis.call("EXISTS", queue.base .. ":" .. job.id) == 1 then
    return addExisting(to, job, now)
  end
  if job.max_lane_size and deduplication.hasNoRoom(queue, job) then return refusals.LANE_FULL end
  local _, owner = arrivals.insert(to, job, data, opts, now)
  if job.once then once.remember(queue, job.id, job.once.key, job.once.ms) end
  return owner or 0
end

--- The lanes whose jobs must not overtake one that an earlier call failed to add.
local function heldLanes(queue, behind)
  local held = {}
  for _, last in ipairs(behind or {}) do
    if not once.isRemembered(queue, last.id, last.key) then held[last.lane] = refusals.LANE_FULL end
  end
  return held
end

--- Does none of these jobs exist, nor come twice? Then they need not be asked for one by one.
local function areNew(queue, new_jobs)
  local job_keys, is_seen = {}, {}
  for i, job in ipairs(new_jobs) do
    if is_seen[job.id] then return false end
    is_seen[job.id], job_keys[i] = true, queue.base .. ":" .. job.id
  end
  return redis.call("EXISTS", unpack(job_keys)) == 0
end

local function addEach(to, a, ARGV, now)
  local results, are_all_added, full = { now }, true, heldLanes(to.queue, a.behind)
  for i, job in ipairs(a.jobs) do
    local result = full[job.lane] or addJob(to, job, ARGV[2 * i], ARGV[2 * i + 1], now)
    results[i + 1] = result
    if a.keeps_order and result == refusals.LANE_FULL then full[job.lane] = result end
    are_all_added = are_all_added and result == 0
  end
  return results, are_all_added
end

local function addAll(to, a, ARGV, now)
  if #a.jobs > 1 then
    to.queue.keeping, to.queue.pushing, to.are_new = {}, {}, areNew(to.queue, a.jobs)
  end
  local is_done, results, are_all_added = pcall(addEach, to, a, ARGV, now)
  -- If the server refused one, those before it are still jobs to be run.
  arrivals.close(to)
  if not is_done then error(results, 0) end
  return results, are_all_added
end

function calls.add(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, marker, meta, id, events = unpack(KEYS)
  local queue = queues.given({ base = base, wait = wait, paused = paused, active = active,
    prioritized = prioritized, pc = pc, delayed = delayed, waiting_children = waiting_children,
    completed = completed, marker = marker, meta = meta, id = id, events = events })
  local now = clock.now()
  local to = arrivals.at(queue, gates.read(queue))
  return requests.makeOnce(queue, a, now, function() return addAll(to, a, ARGV, now) end,
    function(at) return requests.allAdded(at, #a.jobs) end)
end
