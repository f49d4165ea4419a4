--[[
  addGroup: create a group (a saga) with all of its members, in whichever queues they belong to.

  All or nothing: anything that could prevent it is checked before anything is written. Members in other
  slots of a cluster leave as parcels in the same step (rooms/remotes.lua); what prevents them from being
  added there is found out later, and they fail.
  A call that is sent again because its reply was lost gets the same reply and adds nothing. This holds
  for a day, or `remember_ms`, after the group has ended and been forgotten. With a `definition` the id is the caller's: if
  a group with that id was made from the same definition, the reply has its `seed`.
  Members that wait for others are written down and become jobs later (rooms/stages.lua).

  Keys      base (of the queue that owns the group), groups (index), group (record), members, plan, open,
            gone (what is still known of it once it is forgotten)
  Args      id str, name str, queues list of str (bases), jobs list of {id, name, queue, kind, undo,
            delay, run_at, priority, lifo, timestamp, lane, order_ms, ordering_delay, max_lane_size,
            label, behind, waits, timeout_ms}, definitions list of {name, opts, data}, targets map, order str,
            late bool, keep map?, remember_ms int?, timeout_ms int?, look_again_ms int,
            gates list? (each: the numbers it waits for and the numbers that wait), pivot int?, undo_ms int?, ends map?, seed str?,
            definition str?, flight str?, request str?, is_late bool? (rooms/requests.lua)
            After the map, raw: the compensations as JSON, then for each job its data and options.
  Returns   now ms; or when the group was created and its seed, if an earlier call created it; or the id
            of a job that already exists, with its queue; or one refusal for all: the code and the job's
            position
  Refuses   LANE_FULL           a lane would hold more than max_lane_size jobs   LaneFullError
            OTHER_GROUP         another group has this id; its definition   GroupExistsError
  Emits     added, waiting, delayed
  Keeps     I1, G1, G2
  Cost      O(jobs)
]]
local TYPES = { wait = "list", paused = "list", active = "list", prioritized = "zset",
  delayed = "zset", marker = "zset", events = "stream", meta = "hash", id = "string", pc = "string",
  groups = "zset", de = "set", ["toril:group-deadlines"] = "zset" }
local LANE_TYPES = { ["lanes:waiting"] = "zset", ["lanes:delayed"] = "zset", ["lanes:aside"] = "zset",
  ["lanes:ready"] = "zset", ["lanes:later"] = "zset", ["lanes:index"] = "zset",
  ["lanes:held"] = "hash", ["lanes:settings"] = "hash", ["lanes:diverting"] = "hash" }
local RECORD_TYPES = { { "group", "hash" }, { "members", "hash" }, { "plan", "hash" },
  { "open", "zset" }, { "gone", "hash" } }
local OUTBOX_TYPES = { ["toril:parcels"] = "hash", ["toril:parcels-due"] = "zset" }
local SHARED_MS = 86400000
local SLICE = 1000

--- A key of the wrong type would stop this script in the middle, and nothing undoes the first half.
local function foreignKey(key, expected)
  local actual = redis.call("TYPE", key).ok
  if actual == "none" or actual == expected then return nil end
  return "WRONGTYPE " .. key .. " is a " .. actual .. " and not a " .. expected
end

local function foreignOf(base, types)
  local queue = queues.at(base)
  for name, expected in pairs(types) do
    local foreign = foreignKey(queue[name], expected)
    if foreign then return foreign end
  end
end

local function foreignRecord(record, base, a)
  for _, part in ipairs(RECORD_TYPES) do
    local foreign = foreignKey(record[part[1]], part[2])
    if foreign then return foreign end
  end
  if not a.gates then return nil end
  return foreignKey(record.stage, "hash") or foreignKey(stages.index(base), "zset")
end

--- The queues that the group touches, without duplicates, its owner first.
local function touched(base, a)
  local bases, seen = {}, {}
  local function touch(one)
    if not seen[one] then seen[one], bases[#bases + 1] = true, one end
  end
  touch(base)
  for _, one in ipairs(a.queues) do touch(one) end
  for _, one in pairs(a.targets) do touch(one) end
  for _, job in pairs(a.ends or {}) do touch(job.queue) end
  return bases
end

--- Those whose queues are in this slot.
local function hereOf(jobs_of)
  local here = {}
  for _, job in ipairs(jobs_of) do
    if not parcels.isAway(job.base) then here[#here + 1] = job end
  end
  return here
end

--- What prevents the group from being created: an error or a refusal. `jobs_of` are those of this slot.
local function obstacle(a, bases, jobs_of)
  local is_sending = false
  for _, one in ipairs(bases) do
    local is_away = parcels.isAway(one)
    local foreign = not (is_away and is_sending)
      and foreignOf(is_away and bases[1] or one, is_away and OUTBOX_TYPES or TYPES)
    if foreign then return redis.error_reply(foreign) end
    is_sending = is_sending or is_away
  end
  local checked, keys, isLaneFullFor = {}, {}, nil
  for _, job in ipairs(jobs_of) do
    keys[#keys + 1] = job.key
    if job.lane and not checked[job.base] then
      checked[job.base] = true
      local foreign = foreignOf(job.base, LANE_TYPES)
      if foreign then return redis.error_reply(foreign) end
    end
  end
  if #keys > 0 and redis.call("EXISTS", unpack(keys)) > 0 then
    for _, job in ipairs(jobs_of) do
      if redis.call("EXISTS", job.key) == 1 then return { job.id, job.base } end
    end
  end
  for _, job in ipairs(jobs_of) do
    if job.lane and not job.waits then
      isLaneFullFor = isLaneFullFor or lanes.guard()
      if isLaneFullFor(queues.at(job.base), job) then return { refusals.LANE_FULL, job.number + 1 } end
    end
  end
end

--- HSET with any number of fields.
local function writeAll(key, flat)
  for first = 1, #flat, SLICE do
    redis.call("HSET", key, unpack(flat, first, math.min(first + SLICE - 1, #flat)))
  end
end

local function writeRecord(group, a, compensation, now)
  local record = { "name", a.name, "state", "ACTIVE", "createdAt", clock.stamp(now), "updatedAt",
    clock.stamp(now), "totalJobs", clock.digits(#a.jobs), "completedCount", "0", "failedCount", "0",
    "cancelledCount", "0", "compensation", compensation }
  local function also(field, value)
    if value then record[#record + 1], record[#record + 2] = field, value end
  end
  also("x.order", a.order == "graph" and "reverse" or a.order == "reverse" and a.order)
  also("x.undo", a.order == "graph" and a.order)
  also("x.late", not a.late and "0")
  also("x.keep", a.keep and cmsgpack.pack(a.keep))
  also("x.remember", a.remember_ms)
  also("x.deadline", a.timeout_ms and now + a.timeout_ms)
  also("x.undoMs", a.undo_ms)
  also("x.staged", a.gates and "1")
  also("x.pivot", a.pivot)
  also("x.ends", a.ends and "1")
  also("x.seed", a.seed)
  also("x.definition", a.definition)
  redis.call("HSET", group, unpack(record))
end

--- Write down what is known about the members: who they are, how each is undone, who waits for whom, and
--- what the waiting ones will become.
local function writePlan(record, a, ARGV)
  local planned, later = {}, {}
  local function keep(flat, field, value)
    flat[#flat + 1], flat[#flat + 2] = field, value
  end
  for i, definition in ipairs(a.definitions) do
    keep(planned, "c" .. i, cmsgpack.pack(definition))
  end
  keep(planned, "targets", cmsgpack.pack(a.targets))
  for when, job in pairs(a.ends or {}) do
    keep(planned, when, cmsgpack.pack(job))
  end
  local gate_of, keys = {}, {}
  for i, job in ipairs(a.jobs) do keys[i] = job.key end
  for number, gate in ipairs(a.gates or {}) do
    for part = 1, 2 do
      local keys_of = {}
      for i, member in ipairs(gate[part]) do
        keys_of[i] = keys[member + 1]
        if part == 2 then gate_of[member] = number end
      end
      gate[part + 2] = keys_of
    end
    keep(planned, "g" .. number, cmsgpack.pack(gate))
  end
  for _, job in ipairs(a.jobs) do
    local number, entry = clock.digits(job.number), { job.key, job.name, job.undo or 0, job.kind }
    if a.gates or job.label then
      entry[5], entry[6], entry[7] = false, job.label or false, job.behind or false
      entry[8] = gate_of[job.number] or false
    end
    keep(planned, number, cmsgpack.pack(entry))
    if job.waits or job.kind == "s" or a.pivot then
      keep(later, number, cmsgpack.pack(job))
      if job.payload then
        keep(later, number .. ".data", ARGV[job.payload])
        keep(later, number .. ".opts", ARGV[job.payload + 1])
      end
    end
  end
  writeAll(record.plan, planned)
  writeAll(record.stage, later)
end

--- Put the members that wait for nobody into their queues.
local function startMembers(record, base, a, ARGV, now)
  local statuses, homes = {}, {}
  for i, job in ipairs(a.jobs) do
    local status = job.waits and "planned" or job.kind == "s" and "awaited" or "pending"
    statuses[2 * i - 1], statuses[2 * i] = job.key, status
    if status == "pending" then
      job.group = record.group .. ":" .. job.kind .. job.number
      stages.insert(homes, job.base, job, ARGV[job.payload], ARGV[job.payload + 1], now, base)
    end
  end
  redis.call("HSET", record.members, unpack(statuses))
  stages.close(homes)
end

--- What is known about a group with this id.
local function findKnown(record, a)
  for _, key in ipairs({ record.group, record.gone }) do
    local known = hashes.read(key, "createdAt", "x.definition", "x.seed")
    if known.createdAt then
      if not a.definition then return tonumber(known.createdAt) end
      if known["x.definition"] ~= a.definition then
        return { refusals.OTHER_GROUP, known["x.definition"] or "" }
      end
      return { tonumber(known.createdAt), known["x.seed"] or "" }
    end
  end
  return nil
end

--- Find where each member will be and which payloads belong to it. Returns those that are jobs, and the
--- queues that the group touches.
local function placeMembers(base, a)
  local payload, jobs_of, bases = 3, {}, touched(base, a)
  for i, job in ipairs(a.jobs) do
    job.number = i - 1
    job.base = job.kind == "s" and base or a.queues[job.queue]
    job.key = job.base .. ":" .. job.id
    if job.kind == "s" then
      job.queues = job.timeout_ms and bases
    else
      jobs_of[#jobs_of + 1], job.payload, payload = job, payload, payload + 2
    end
  end
  return jobs_of, bases
end

--- Make the group visible to those who list groups and those who watch their time limits.
local function index(record, base, bases, a, now)
  redis.call("ZADD", record.groups, clock.stamp(now), a.id)
  redis.call("SADD", base .. ":de", "groups")
  gates.read(queues.at(base)) -- a queue is recognized by its `meta`, and this one may have no jobs
  for source, target in pairs(a.targets) do
    if target == source .. ":compensation" and not parcels.isAway(source) then
      redis.call("SADD", source .. ":de", "compensation")
    end
  end
  local due = now + math.min(a.timeout_ms or a.look_again_ms, a.look_again_ms)
  redis.call("ZADD", record.open, due, a.id)
  if a.gates then redis.call("ZADD", stages.index(base), now + a.look_again_ms, a.id) end
  if not a.timeout_ms and not a.gates then return end
  for _, one in ipairs(bases) do
    stages.share(base, one, now + math.max(a.timeout_ms or 0, a.gates and SHARED_MS or 0), a.timeout_ms)
  end
end

local function createGroup(record, base, a, ARGV, compensation, now)
  local foreign = foreignRecord(record, base, a)
  if foreign then return redis.error_reply(foreign) end
  local before = findKnown(record, a)
  if before then return before end
  local jobs_of, bases = placeMembers(base, a)
  local refusal = obstacle(a, bases, hereOf(jobs_of))
  if refusal then return refusal end
  writeRecord(record.group, a, compensation, now)
  index(record, base, bases, a, now)
  writePlan(record, a, ARGV)
  startMembers(record, base, a, ARGV, now)
  if a.gates then stages.begin(record.group, a.jobs, now) end
  return now, true
end

function calls.addGroup(KEYS, a, ARGV)
  local base, groups_, group, members_, plan, open, gone = unpack(KEYS)
  local compensation = ARGV[2]
  local now = clock.now()
  local record = { groups = groups_, group = group, members = members_, plan = plan, open = open,
    gone = gone, stage = group .. ":stage" }
  return requests.makeOnce(queues.at(base), a, now, function()
    return createGroup(record, base, a, ARGV, compensation, now)
  end, function(at) return at end)
end
