--[[
  addGroup: create a group (a saga) with all of its jobs, in as many queues as they are in.

  Everything or nothing: whatever could stand in the way is looked at before anything is written.
  A call that comes again, because its reply was lost, gets the same reply and adds nothing, even if the
  group has ended since and has been forgotten, for a day.

  Keys      base (of the queue that owns the group), groups (index), group (record), members, plan, open,
            gone (what is known of it if it is forgotten)
  Args      id str, name str, queues list of str (bases), jobs list of {id, name, queue, kind, undo,
            delay, run_at, priority, lifo, timestamp, lane, order_ms,
            ordering_delay, max_lane_size}, definitions list of {name, opts, data}, targets map,
            order str, late bool, keep map?, timeout_ms int?, look_again_ms int,
            flight str?, request str?, is_late bool? (rooms/requests.lua)
            After the map, raw: the compensations as JSON, then for each job its data and options.
  Returns   now ms; or the id of a job that exists already, with its queue; or one refusal for all: the
            code and the place of the job
  Refuses   LANE_FULL           a lane would hold more than max_lane_size jobs   LaneFullError
  Emits     added, waiting, delayed
  Keeps     I1, G1, G2
  Cost      O(jobs)
]]
local TYPES = { wait = "list", paused = "list", active = "list", prioritized = "zset",
  delayed = "zset", marker = "zset", events = "stream", meta = "hash", id = "string", pc = "string",
  groups = "zset", de = "set" }
local LANE_TYPES = { ["lanes:waiting"] = "zset", ["lanes:delayed"] = "zset", ["lanes:aside"] = "zset",
  ["lanes:ready"] = "zset", ["lanes:later"] = "zset", ["lanes:index"] = "zset",
  ["lanes:held"] = "hash", ["lanes:settings"] = "hash", ["lanes:diverting"] = "hash" }
local RECORD_TYPES = { { "group", "hash" }, { "members", "hash" }, { "plan", "hash" },
  { "open", "zset" }, { "gone", "hash" } }
local LATE_MS = 86400000

--- A key of another type would stop this script in the middle, and nothing undoes the first half.
local function foreignKey(key, expected)
  local actual = redis.call("TYPE", key).ok
  if actual == "none" or actual == expected then return nil end
  return "WRONGTYPE " .. key .. " is a " .. actual .. " and not a " .. expected
end

local DEADLINES = { ["toril:group-deadlines"] = "zset" }

local function foreignOf(queue, types)
  for name, expected in pairs(types) do
    local foreign = foreignKey(queue[name], expected)
    if foreign then return foreign end
  end
  return nil
end

local function foreignRecord(record)
  for _, part in ipairs(RECORD_TYPES) do
    local foreign = foreignKey(record[part[1]], part[2])
    if foreign then return foreign end
  end
  return nil
end

--- A key in the way of any queue that the group touches.
local function foreignQueue(owner, homes, a)
  local foreign = foreignOf(owner, TYPES)
  for _, to in ipairs(homes) do
    foreign = foreign or foreignOf(to.queue, TYPES)
      or a.timeout_ms and foreignOf(to.queue, DEADLINES)
  end
  for _, job in ipairs(a.jobs) do
    if job.lane then foreign = foreign or foreignOf(homes[job.queue].queue, LANE_TYPES) end
  end
  for _, target in pairs(a.targets) do
    foreign = foreign or foreignOf(queues.at(target), TYPES)
      or a.timeout_ms and foreignOf(queues.at(target), DEADLINES)
  end
  return foreign
end

--- Why the members cannot be added: an id in use, or a lane that is full; else nothing.
local function refuseMembers(homes, a)
  local job_keys = {}
  for i, job in ipairs(a.jobs) do
    job_keys[i] = a.queues[job.queue] .. ":" .. job.id
  end
  if redis.call("EXISTS", unpack(job_keys)) > 0 then
    for i, job in ipairs(a.jobs) do
      if redis.call("EXISTS", job_keys[i]) == 1 then return { job.id, a.queues[job.queue] } end
    end
  end
  local isLaneFullFor = lanes.guard()
  for i, job in ipairs(a.jobs) do
    if isLaneFullFor(homes[job.queue].queue, job) then return { refusals.LANE_FULL, i } end
  end
  return nil
end

--- Let the workers of another queue mind the time limit as well; the queue that owns the group may have
--- none.
local function shareDeadline(base, queue_base, deadline)
  if queue_base == base then return end
  local deadlines = queues.at(queue_base)["toril:group-deadlines"]
  redis.call("ZADD", deadlines, "GT", clock.stamp(deadline), base)
  local last = redis.call("ZREVRANGE", deadlines, 0, 0, "WITHSCORES")[2]
  redis.call("PEXPIREAT", deadlines, clock.stamp(tonumber(last) + LATE_MS))
end

local function shareDeadlines(base, a, deadline)
  for _, queue_base in ipairs(a.queues) do
    shareDeadline(base, queue_base, deadline)
  end
  for _, target in pairs(a.targets) do
    shareDeadline(base, target, deadline)
  end
end

local function writeRecord(record, owner, a, compensation, now)
  local at = clock.stamp(now)
  local fields = { "name", a.name, "state", "ACTIVE", "createdAt", at, "updatedAt", at,
    "totalJobs", clock.digits(#a.jobs), "completedCount", "0", "failedCount", "0",
    "cancelledCount", "0", "compensation", compensation }
  local function also(field, value)
    fields[#fields + 1], fields[#fields + 2] = field, value
  end
  if a.order ~= "parallel" then also("x.order", a.order) end
  if not a.late then also("x.late", "0") end
  if a.keep then also("x.keep", cmsgpack.pack(a.keep)) end
  if a.timeout_ms then also("x.deadline", now + a.timeout_ms) end
  redis.call("HSET", record.group, unpack(fields))
  redis.call("ZADD", record.groups, at, a.id)
  redis.call("SADD", owner.de, "groups")
  gates.read(owner) -- a queue is known by its `meta`, and this one may have no jobs
  for source, target in pairs(a.targets) do
    if target == source .. ":compensation" then redis.call("SADD", source .. ":de", "compensation") end
  end
  if a.timeout_ms then shareDeadlines(owner.base, a, now + a.timeout_ms) end
  redis.call("ZADD", record.open, now + math.min(a.timeout_ms or a.look_again_ms, a.look_again_ms),
    a.id)
end

--- Add the members, and note who they are and how each is undone.
local function addMembers(record, homes, a, ARGV, now)
  local statuses, planned = {}, {}
  for i, definition in ipairs(a.definitions) do
    planned[#planned + 1], planned[#planned + 2] = "c" .. i, cmsgpack.pack(definition)
  end
  planned[#planned + 1], planned[#planned + 2] = "targets", cmsgpack.pack(a.targets)
  for i, job in ipairs(a.jobs) do
    local to = homes[job.queue]
    to.count = to.count + 1
    job.group = record.group .. ":" .. job.kind .. (i - 1)
    arrivals.insert(to, job, ARGV[2 * i + 1], ARGV[2 * i + 2], now)
    local key = to.queue.base .. ":" .. job.id
    statuses[2 * i - 1], statuses[2 * i] = key, "pending"
    planned[#planned + 1] = clock.digits(i - 1)
    planned[#planned + 1] = cmsgpack.pack({ key, job.name, job.undo or 0, job.kind })
  end
  redis.call("HSET", record.members, unpack(statuses))
  redis.call("HSET", record.plan, unpack(planned))
  for _, to in ipairs(homes) do
    arrivals.close(to)
  end
end

local function createGroup(record, owner, a, ARGV, compensation, now)
  local foreign = foreignRecord(record)
  if foreign then return redis.error_reply(foreign) end
  local created_at = redis.call("HGET", record.group, "createdAt")
    or redis.call("HGET", record.gone, "createdAt")
  if created_at then return tonumber(created_at) end
  local homes = {}
  for i, queue_base in ipairs(a.queues) do
    homes[i] = arrivals.at(queues.at(queue_base))
  end
  foreign = foreignQueue(owner, homes, a)
  if foreign then return redis.error_reply(foreign) end
  local refusal = refuseMembers(homes, a)
  if refusal then return refusal end
  writeRecord(record, owner, a, compensation, now)
  addMembers(record, homes, a, ARGV, now)
  return now, true
end

function calls.addGroup(KEYS, a, ARGV)
  local base, groups_, group, members_, plan, open, gone = unpack(KEYS)
  local compensation = ARGV[2]
  local owner, now = queues.at(base), clock.now()
  local record = { groups = groups_, group = group, members = members_, plan = plan, open = open,
    gone = gone }
  return requests.makeOnce(owner, a, now, function()
    return createGroup(record, owner, a, ARGV, compensation, now)
  end, function(at) return at end)
end
