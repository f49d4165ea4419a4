--[[
  sweep: bring back jobs whose worker died or fell silent, and mark the active ones for next time.

  A job is stalled when it was active at the last sweep and holds no lock now. The sweep works in
  slices: `more` says that there is more to do, and the next call continues at `cursor`.
  Bringing a job back takes many commands, marking one takes none of its own: of the former a call
  does fewer.
  A job that was handed out by a flight's last reply may never have arrived: its handler probably
  never ran, so the stall does not count. The job is marked (`x.unheard`), and the next worker that
  takes it confirms the arrival before running it: stalls after that count. A job whose arrival itself
  kills the worker is forgiven only a few times.
  Replies of flights that have been silent for longer than `forget_ms` are forgotten: each sweep walks
  through some of them, and all of them expire if nobody sweeps any more.
  Jobs in `paused` of a queue that is not paused come back too: at most one slice per sweep.
  A clock that was ahead and is set back leaves times that are too late: whatever would live longer
  than it was ever meant to is shortened, so that nothing is stuck until the clock catches up.

  Keys      base, wait, paused, active, stalled, stalled_check, marker, meta, events, repeat, replies
  Args      interval_ms int, max_stalled int, cursor int (0 to begin, -1 to continue with the stalled,
            else how many active ones are marked), slice int, forget_ms int
  Returns   more (0 or 1), next cursor, the ids brought back, whether there are lanes to look at (0 for
            none)
  Emits     waiting, stalled
  Keeps     I1, I2, I3
  Flags     allow-oom
  Cost      O(slice)
]]
local MOST_UNHEARD = 3
local MOST_BROUGHT_BACK = 100
local LONG_LOCK_MS, MOST_LATE = 300000, 100
local FLIGHTS_A_WALK, FLIGHTS_A_LOOK = 500, 2000
local EXPIRE_MS = "86400000"

--- May this sweep begin? One per `interval_ms` may, whoever asks.
local function begins(stalled_check, interval_ms)
  if redis.call("SET", stalled_check, clock.now(), "PX", interval_ms, "NX") then return true end
  local left_ms = redis.call("PTTL", stalled_check)
  if left_ms >= 0 and left_ms <= interval_ms then return false end
  redis.call("SET", stalled_check, clock.now(), "PX", interval_ms)
  return true
end

--- Continue where the last sweep stopped.
local function forgetSilentFlights(base, replies, forget_ms)
  local place, now = base .. ":toril:replies-walk", clock.now()
  local page = redis.call("HSCAN", replies, redis.call("GET", place) or "0", "COUNT", FLIGHTS_A_WALK)
  for i = 1, #page[2], 2 do
    if now - cmsgpack.unpack(page[2][i + 1]).at > forget_ms then
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

--- Does somebody hold the job? A lock set while the clock was ahead is shortened by as much.
local function isLocked(job)
  local left_ms = redis.call("PTTL", job .. ":lock")
  -- A lock that never expires belongs to nobody: workers renew theirs.
  if left_ms < 0 then return false end
  if left_ms > LONG_LOCK_MS then
    local ahead_ms = (tonumber(redis.pcall("HGET", job, "processedOn")) or 0) - clock.now()
    if ahead_ms > 0 and ahead_ms < left_ms then
      redis.call("PEXPIRE", job .. ":lock", clock.digits(left_ms - ahead_ms))
    end
  end
  return true
end

--- Does a scheduler still count on this job? Then it is never given up: the schedule would end.
local function isScheduled(queue, job)
  local scheduler = redis.call("HGET", job, "rjk")
  if not scheduler then return false end
  return redis.call("ZSCORE", queue["repeat"], scheduler) ~= false
    or redis.call("EXISTS", queue["repeat"] .. ":" .. scheduler) == 1
end

--- When the jobs that nobody is known to have received were taken, by id.
local function readUnheard(replies)
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

local function wasNeverHeardOf(round, job, id)
  round.unheard = round.unheard or readUnheard(round.replies)
  local taken_at = round.unheard[id]
  if not taken_at then return false end
  if taken_at ~= tonumber(redis.pcall("HGET", job, "processedOn")) then return false end
  return redis.call("HINCRBY", job, "x.unheard", 1) <= MOST_UNHEARD
end

--- An interrupted resume leaves jobs in `paused`, where nobody takes them and BullMQ 5's next pause
--- overwrites them.
local function bringBackPaused(queue, gate, slice)
  if gate.paused or redis.call("EXISTS", queue.paused) == 0 then return end
  if redis.call("EXISTS", queue.wait) == 0 then
    redis.call("RENAME", queue.paused, queue.wait)
  else
    redis.call("RPUSH", queue.wait, unpack(redis.call("LPOP", queue.paused, slice)))
  end
  places.wake(queue, gate)
end

--- Check lanes that have been waiting for longer than their rate limit can hold them.
local function lookAtLateLanes(queue)
  local later, now = queue["lanes:later"], clock.now()
  local last = redis.call("ZREVRANGE", later, 0, MOST_LATE - 1, "WITHSCORES")
  for i = 1, #last, 2 do
    local lane = last[i]
    if tonumber(last[i + 1]) - now > (lanes.rules(queue, lane).duration or 1000) then
      redis.call("ZREM", later, lane)
      local turn, ids = lanes.holders(queue, lane)
      lanes.place(queue, lane, #ids, turn)
    end
  end
end

--- How often a job may stall before it is given up. A compensation may stall as often as it has
--- attempts: if it were given up, what it should undo would stay done.
local function mostStalls(job, max_stalled)
  local known = hashes.read(job, "x.group", "opts")
  local attempts = string.match(known["x.group"] or "", ":c%d+$")
    and tonumber(string.match(known.opts or "", '"attempts":(%d+)'))
  return math.max(max_stalled, attempts or 0)
end

--- Count a stall against the job, unless its worker may never have received it.
local function countStall(round, job, id, before)
  if wasNeverHeardOf(round, job, id) then return end
  -- A damaged number must not keep all the other jobs from coming back.
  local count = (tonumber(before) or 0) + 1
  redis.call("HSET", job, "stc", clock.digits(count))
  if count > mostStalls(job, round.max_stalled) and not isScheduled(round.queue, job) then
    redis.call("HSET", job, "defa", "job stalled more than allowable limit")
  end
end

--- Bring back a job that has already left `active`.
local function bringBack(round, job, id)
  local queue, gate = round.queue, round.gate
  local known = hashes.read(job, "name", "x.lane", "stc", "x.group")
  if not known.name then return end
  countStall(round, job, id, known.stc)
  local membership, lane = known["x.group"], known["x.lane"]
  if membership then
    jobs.noteOpenEnd(job)
    if groups.stateOf(membership, job) ~= "ACTIVE" then
      redis.call("HSET", job, "defa", "its group is being undone")
    end
  end
  if lane then
    lanes.giveBack(queue, lane, id)
  else
    redis.call("RPUSH", gates.readyList(queue, gate), id)
  end
  places.wake(queue, gate)
  journal.emit(queue, "waiting", "jobId", id, "prev", "active")
  journal.emit(queue, "stalled", "jobId", id)
  round.brought_back[#round.brought_back + 1] = id
end

--- Bring back a slice of those that were active last time and hold no lock now.
local function bringBackStalled(round, slice)
  local queue = round.queue
  for _, id in ipairs(redis.call("SPOP", queue.stalled, math.min(slice, MOST_BROUGHT_BACK))) do
    local job = queue.base .. ":" .. id
    if not isLocked(job) and redis.call("LREM", queue.active, 1, id) == 1 then
      local is_sound, problem = pcall(bringBack, round, job, id)
      if not is_sound then damage.abandon(queue, id, damage.of(queue, problem), clock.now()) end
    end
  end
end

function calls.sweep(KEYS, a, ARGV)
  local base, wait, paused, active, stalled, stalled_check, marker, meta, events, repeat_, replies = unpack(KEYS)
  local queue = queues.at(base)
  if a.cursor == 0 then
    if not begins(stalled_check, a.interval_ms) then return { 0, 0, {}, 0 } end
    forgetSilentFlights(base, replies, a.forget_ms)
  end
  local gate = gates.read(queue)
  local round = { queue = queue, gate = gate, replies = replies, max_stalled = a.max_stalled,
    brought_back = {} }
  if a.cursor == 0 then
    journal.trim(queue, gate)
    bringBackPaused(queue, gate, a.slice)
    lookAtLateLanes(queue)
  end
  if a.cursor <= 0 then
    bringBackStalled(round, a.slice)
    if redis.call("EXISTS", stalled) == 1 then return { 1, -1, round.brought_back, 0 } end
  end

  -- Starting with the oldest: jobs taken meanwhile enter at the other end.
  local marked = math.max(a.cursor, 0)
  local ids = redis.call("LRANGE", active, -(marked + a.slice), -(marked + 1)) -- bounded: slice
  if #ids > 0 then redis.call("SADD", stalled, unpack(ids)) end
  if #ids == a.slice then return { 1, marked + a.slice, round.brought_back, 0 } end
  local lanes_to_look_at = redis.call("EXISTS", queue["lanes:held"], queue["lanes:diverting"])
  if lanes_to_look_at == 0 and not lanes.isAllKept(queue) then lanes_to_look_at = 1 end
  return { 0, 0, round.brought_back, lanes_to_look_at }
end
