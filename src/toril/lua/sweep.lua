#!lua flags=allow-oom
--[[
  sweep: bring jobs back whose worker died or fell silent, and mark the active ones for next time.

  A job is stalled when it was active at the last sweep and holds no lock now. The sweep works in
  slices: `more` says that there is more to do, and the next call goes on with `cursor`.
  A job that was handed out by a flight's last reply may never have arrived: its handler probably
  never ran, so that is not held against it. It is marked (`x.unheard`), and whoever takes it then
  says that it arrived before running it: what happens after that counts. That the arrival itself
  kills is forgiven a few times only.
  Replies of flights that have been silent for longer than `forget_ms` are forgotten: each sweep walks
  through a part of them, and all of them expire when nobody sweeps any more.
  Jobs in `paused` of a queue that is not paused come back too: at most a slice in a sweep.
  A clock that was ahead and is set back leaves times that nobody would have chosen: what lives longer
  than it was ever meant to is shortened, so that nothing stands still until the clock is there again.

  Keys      base, wait, paused, active, stalled, stalled_check, marker, meta, events, repeat, replies
  Args      interval_ms int, max_stalled int, cursor int (0 to begin, -1 to go on with the stalled,
            else how many active ones are marked), slice int, forget_ms int
  Returns   more (0 or 1), next cursor, the ids brought back, whether there are lanes to look at (0 for
            none)
  Emits     waiting, stalled
  Keeps     I1, I2, I3
  Cost      O(slice)
]]
local base, wait, paused, active, stalled, stalled_check, marker, meta, events, repeat_, replies = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/groups"
--- @include "includes/openEnd"
--- @include "includes/lanes"
--- @include "includes/damage"

local queue = queueAt(base)
local MOST_UNHEARD = 3
local LONG_LOCK_MS, MOST_LATE = 300000, 100
local FLIGHTS_A_WALK, FLIGHTS_A_LOOK = 500, 2000
local EXPIRE_MS = "86400000"

--- Go on from where the last sweep stopped.
local function forgetSilentFlights(now)
  local place = base .. ":toril:replies-walk"
  local page = redis.call("HSCAN", replies, redis.call("GET", place) or "0", "COUNT", FLIGHTS_A_WALK)
  for i = 1, #page[2], 2 do
    if now - cmsgpack.unpack(page[2][i + 1]).at > a.forget_ms then
      redis.call("HDEL", replies, page[2][i])
    end
  end
  if page[1] == "0" then
    redis.call("DEL", place)
  else
    redis.call("SET", place, page[1], "PX", EXPIRE_MS)
  end
  redis.call("PEXPIRE", replies, EXPIRE_MS)
end

if a.cursor == 0 then
  if not redis.call("SET", stalled_check, clock(), "PX", a.interval_ms, "NX") then
    local left_ms = redis.call("PTTL", stalled_check)
    if left_ms >= 0 and left_ms <= a.interval_ms then return { 0, 0, {}, 0 } end
    redis.call("SET", stalled_check, clock(), "PX", a.interval_ms)
  end
  forgetSilentFlights(clock())
end
local gate = readGate(queue)

--- Does a scheduler still count on this job? Then it is never given up: the schedule would end.
local function isScheduled(job)
  local scheduler = redis.call("HGET", job, "rjk")
  if not scheduler then return false end
  return redis.call("ZSCORE", queue["repeat"], scheduler) ~= false
    or redis.call("EXISTS", queue["repeat"] .. ":" .. scheduler) == 1
end

--- When the jobs were taken that nobody is known to have received, by id.
local unheard = nil
local function readUnheard()
  local taken_at, seen, cursor = {}, 0, "0"
  repeat
    local page = redis.call("HSCAN", replies, cursor, "COUNT", 500)
    cursor = page[1]
    for i = 1, #page[2], 2 do
      local last = cmsgpack.unpack(page[2][i + 1])
      for _, id in ipairs(last.taken) do
        taken_at[id] = last.at
      end
    end
    seen = seen + #page[2] / 2
  until cursor == "0" or seen >= FLIGHTS_A_LOOK
  return taken_at
end

local function wasNeverHeardOf(job, id)
  unheard = unheard or readUnheard()
  if not unheard[id] then return false end
  if unheard[id] ~= tonumber(redis.pcall("HGET", job, "processedOn")) then return false end
  return redis.call("HINCRBY", job, "x.unheard", 1) <= MOST_UNHEARD
end

--- A resume that broke off leaves jobs in `paused`, where nobody takes from and the next pause of
--- BullMQ 5 writes over them.
local function bringBackPaused()
  if gate.paused or redis.call("EXISTS", paused) == 0 then return end
  if redis.call("EXISTS", wait) == 0 then
    redis.call("RENAME", paused, wait)
  else
    redis.call("RPUSH", wait, unpack(redis.call("LPOP", paused, a.slice)))
  end
  wake(queue, gate)
end

--- Does somebody hold the job? A lock that was given by a clock that was ahead is shortened by as much.
local function isLocked(job)
  local left_ms = redis.call("PTTL", job .. ":lock")
  -- A lock without an end is nobody's: those who run jobs renew theirs.
  if left_ms < 0 then return false end
  if left_ms > LONG_LOCK_MS then
    local ahead_ms = (tonumber(redis.pcall("HGET", job, "processedOn")) or 0) - clock()
    if ahead_ms > 0 and ahead_ms < left_ms then
      redis.call("PEXPIRE", job .. ":lock", digits(left_ms - ahead_ms))
    end
  end
  return true
end

--- Look again at lanes that wait for longer than their rate limit can hold them.
local function lookAtLateLanes()
  local now = clock()
  local last = redis.call("ZREVRANGE", queue["lanes:later"], 0, MOST_LATE - 1, "WITHSCORES")
  for i = 1, #last, 2 do
    local lane = last[i]
    if tonumber(last[i + 1]) - now > (laneRules(queue, lane).duration or 1000) then
      redis.call("ZREM", queue["lanes:later"], lane)
      local turn, ids = laneHolders(queue, lane)
      placeLane(queue, lane, #ids, turn)
    end
  end
  if #last > 0 then wakeForLanes(queue, gate) end
end

local brought_back = {}

--- How often a job may stall before it is given up. What undoes a member of a group has as many tries as
--- it has attempts: what it should take back would stay.
local function mostStalls(job)
  local known = redis.call("HMGET", job, "x.group", "opts")
  local attempts = string.match(known[1] or "", ":c%d+$")
    and tonumber(string.match(known[2] or "", '"attempts":(%d+)'))
  return math.max(a.max_stalled, attempts or 0)
end

--- Bring a job back that is out of `active` already.
local function bringBack(job, id)
  local known = redis.call("HMGET", job, "name", "x.lane", "stc")
  if not known[1] then return end
  if not wasNeverHeardOf(job, id) then
    -- A number that somebody damaged must not keep all others from coming back.
    local count = (tonumber(known[3]) or 0) + 1
    redis.call("HSET", job, "stc", digits(count))
    if count > mostStalls(job) and not isScheduled(job) then
      redis.call("HSET", job, "defa", "job stalled more than allowable limit")
    end
  end
  local membership = redis.call("HGET", job, "x.group")
  if membership then
    noteOpenEnd(job)
    if groupStateOf(membership, job) ~= "ACTIVE" then
      redis.call("HSET", job, "defa", "its group is being undone")
    end
  end
  if known[2] then
    returnToLane(queue, known[2], id)
  else
    redis.call("RPUSH", readyList(queue, gate), id)
  end
  wake(queue, gate)
  emit(queue, "waiting", "jobId", id, "prev", "active")
  emit(queue, "stalled", "jobId", id)
  brought_back[#brought_back + 1] = id
end

if a.cursor <= 0 then
  if a.cursor == 0 then
    trimEvents(queue, gate)
    bringBackPaused()
    lookAtLateLanes()
  end
  for _, id in ipairs(redis.call("SPOP", stalled, a.slice)) do
    local job = base .. ":" .. id
    if not isLocked(job) and redis.call("LREM", active, 1, id) == 1 then
      local is_sound, problem = pcall(bringBack, job, id)
      if not is_sound then abandonJob(queue, id, damageOf(queue, problem), clock()) end
    end
  end
  if redis.call("EXISTS", stalled) == 1 then return { 1, -1, brought_back, 0 } end
end

-- From the oldest on: what is taken meanwhile enters at the other end.
local marked = math.max(a.cursor, 0)
local ids = redis.call("LRANGE", active, -(marked + a.slice), -(marked + 1)) -- bounded: slice
if #ids > 0 then redis.call("SADD", stalled, unpack(ids)) end
if #ids == a.slice then return { 1, marked + a.slice, brought_back, 0 } end
local lanes_to_look_at = redis.call("EXISTS", queue["lanes:held"], queue["lanes:diverting"])
if lanes_to_look_at == 0 and not isAllKept(queue) then lanes_to_look_at = 1 end
return { 0, 0, brought_back, lanes_to_look_at }
