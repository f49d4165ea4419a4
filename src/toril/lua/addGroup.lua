#!lua
--[[
  addGroup: create a group (a saga) with all of its jobs, in as many queues as they are in.

  Everything or nothing: whatever could stand in the way is looked at before anything is written.
  A call that comes again, because its reply was lost, gets the same reply and adds nothing, even if the
  group has ended since and has been forgotten, for a day.

  Keys      base (of the queue that owns the group), groups (index), group (record), members, plan, open,
            gone (what is known of it if it is forgotten)
  Args      id str, name str, queues list of str (bases), jobs list of {id, name, queue, kind, undo,
            delay, run_at, priority, lifo, timestamp, lane, order_ms,
            ordering_delay, max_lane_size, custom}, definitions list of {name, opts, data}, targets map,
            order str, late bool, keep map?, timeout_ms int?, look_again_ms int,
            flight str?, request str?, is_late bool? (includes/numbered.lua)
            After the map, raw: the compensations as JSON, then for each job its data and options.
  Returns   now ms; or the id of a job that exists already, with its queue; or one refusal for all: the
            code and the place of the job
  Refuses   -121  a lane would hold more than max_lane_size jobs          LaneFullError
  Emits     added, waiting, delayed
  Keeps     I1, G1, G2
  Cost      O(jobs)
]]
local base, groups, group, members, plan, open, gone = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
local compensation = ARGV[2]
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/deleteJob"
--- @include "includes/deduplicate"
--- @include "includes/insertJob"
--- @include "includes/numbered"

local now = clock()
local TYPES = { wait = "list", paused = "list", active = "list", prioritized = "zset",
  delayed = "zset", marker = "zset", events = "stream", meta = "hash", id = "string", pc = "string",
  groups = "zset", de = "set" }
if a.timeout_ms then TYPES["toril:group-deadlines"] = "zset" end
local LANE_TYPES = { ["lanes:waiting"] = "zset", ["lanes:delayed"] = "zset", ["lanes:aside"] = "zset",
  ["lanes:ready"] = "zset", ["lanes:later"] = "zset", ["lanes:index"] = "zset",
  ["lanes:held"] = "hash", ["lanes:settings"] = "hash", ["lanes:diverting"] = "hash" }

--- A key of another type would stop this script in the middle, and nothing undoes the first half.
local function foreignKey(key, expected)
  local actual = redis.call("TYPE", key).ok
  if actual == "none" or actual == expected then return nil end
  return "WRONGTYPE " .. key .. " is a " .. actual .. " and not a " .. expected
end

local function foreignOf(queue, types)
  for name, expected in pairs(types) do
    local foreign = foreignKey(queue[name], expected)
    if foreign then return foreign end
  end
end

local LATE_MS = 86400000

--- Let the workers of another queue mind the time limit as well; the queue that owns the group may have
--- none.
local function shareDeadline(queue_base, deadline)
  if queue_base == base then return end
  local deadlines = queueAt(queue_base)["toril:group-deadlines"]
  redis.call("ZADD", deadlines, "GT", stamp(deadline), base)
  local last = redis.call("ZREVRANGE", deadlines, 0, 0, "WITHSCORES")[2]
  redis.call("PEXPIREAT", deadlines, stamp(tonumber(last) + LATE_MS))
end

local function createGroup()
  local foreign = foreignKey(group, "hash") or foreignKey(members, "hash") or foreignKey(plan, "hash")
    or foreignKey(open, "zset") or foreignKey(gone, "hash")
  if foreign then return redis.error_reply(foreign) end
  local created_at = redis.call("HGET", group, "createdAt") or redis.call("HGET", gone, "createdAt")
  if created_at then return tonumber(created_at) end

  local queues = {}
  local owner = queueAt(base)
  foreign = foreignOf(owner, TYPES)
  for i, queue_base in ipairs(a.queues) do
    queues[i] = { queue = queueAt(queue_base), count = 0 }
    foreign = foreign or foreignOf(queues[i].queue, TYPES)
  end
  for _, job in ipairs(a.jobs) do
    local to = queues[job.queue]
    if job.lane and not to.has_lanes then
      to.has_lanes = true
      foreign = foreign or foreignOf(to.queue, LANE_TYPES)
    end
  end
  for _, target in pairs(a.targets) do
    foreign = foreign or foreignOf(queueAt(target), TYPES)
  end
  if foreign then return redis.error_reply(foreign) end
  local isLaneFullFor
  local function refuseJob(job)
    if not job.lane then return nil end
    isLaneFullFor = isLaneFullFor or laneGuard()
    if isLaneFullFor(queues[job.queue].queue, job) then return -121 end
    return nil
  end
  local keys = {}
  for i, job in ipairs(a.jobs) do
    keys[i] = a.queues[job.queue] .. ":" .. job.id
  end
  if redis.call("EXISTS", unpack(keys)) > 0 then
    for i, job in ipairs(a.jobs) do
      if redis.call("EXISTS", keys[i]) == 1 then return { job.id, a.queues[job.queue] } end
    end
  end
  for i, job in ipairs(a.jobs) do
    local refusal = refuseJob(job)
    if refusal then return { refusal, i } end
  end

  local record = { "name", a.name, "state", "ACTIVE", "createdAt", stamp(now), "updatedAt", stamp(now),
    "totalJobs", digits(#a.jobs), "completedCount", "0", "failedCount", "0", "cancelledCount", "0",
    "compensation", compensation }
  local function also(field, value)
    record[#record + 1], record[#record + 2] = field, value
  end
  if a.order ~= "parallel" then also("x.order", a.order) end
  if not a.late then also("x.late", "0") end
  if a.keep then also("x.keep", cmsgpack.pack(a.keep)) end
  if a.timeout_ms then also("x.deadline", now + a.timeout_ms) end
  redis.call("HSET", group, unpack(record))
  redis.call("ZADD", groups, stamp(now), a.id)
  redis.call("SADD", owner.de, "groups")
  readGate(owner) -- a queue is known by its `meta`, and this one may have no jobs
  for source, target in pairs(a.targets) do
    if target == source .. ":compensation" then redis.call("SADD", source .. ":de", "compensation") end
  end
  if a.timeout_ms then
    for _, queue_base in ipairs(a.queues) do
      shareDeadline(queue_base, now + a.timeout_ms)
    end
    for _, target in pairs(a.targets) do
      shareDeadline(target, now + a.timeout_ms)
    end
  end
  redis.call("ZADD", open, now + math.min(a.timeout_ms or a.look_again_ms, a.look_again_ms), a.id)

  local statuses, planned = {}, {}
  for i, definition in ipairs(a.definitions) do
    planned[#planned + 1], planned[#planned + 2] = "c" .. i, cmsgpack.pack(definition)
  end
  planned[#planned + 1], planned[#planned + 2] = "targets", cmsgpack.pack(a.targets)

  local payload = 3
  for i, job in ipairs(a.jobs) do
    local to = queues[job.queue]
    to.gate = to.gate or readGate(to.queue)
    to.count = to.count + 1
    job.group = group .. ":" .. job.kind .. (i - 1)
    local place = insertJob(to.queue, to.gate, job, ARGV[payload], ARGV[payload + 1], now)
    to[place] = true
    payload = payload + 2
    local key = to.queue.base .. ":" .. job.id
    statuses[2 * i - 1], statuses[2 * i] = key, "pending"
    planned[#planned + 1], planned[#planned + 2] = digits(i - 1), cmsgpack.pack({ key, job.name, job.undo or 0, job.kind })
  end
  redis.call("HSET", members, unpack(statuses))
  redis.call("HSET", plan, unpack(planned))
  for _, to in ipairs(queues) do
    redis.call("INCRBY", to.queue.id, to.count)
    if to.ready then wake(to.queue, to.gate) end
    if to.delayed then wakeWhenDue(to.queue) end
    if to.lane then wakeForLanes(to.queue, to.gate) end
  end
  return now, true
end

local function created(at)
  return at
end

return makeOnce(queueAt(base), a, now, createGroup, created)
