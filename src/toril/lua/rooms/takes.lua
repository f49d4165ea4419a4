--- Take up to `count` jobs: into `active`, locked, counted, announced.

--- The hash of a job that is about to start, and how many bytes it holds; nothing and 0 if there is
--- something else at its key.
function takes.look(job)
  local hash, size = redis.pcall("HGETALL", job), 0
  if hash.err then return nil, 0 end
  for i = 2, #hash, 2 do size = size + #hash[i] end
  return hash, size
end

--- What a worker is told about a job: its hash, names and values in turn, and its id at the end.
function takes.readTaken(job, id)
  local hash = takes.look(job) or {}
  hash[#hash + 1] = id
  return hash
end

--- How much the windows of several workers may differ. If a window lasts even longer, it was started by
--- a clock that was ahead.
local LONGEST_WINDOW_APART = 60000

--- How many more jobs the rate limit allows to start now, and for how long it holds if that is none.
local function allowance(queue, gate, limiter, count)
  if gate.held_ms then
    local ttl = gates.heldFor(queue, gate)
    if ttl > 0 then return 0, ttl end
  end
  local max = gate.max or (limiter and limiter.max)
  if not max then return count, 0 end
  local started = tonumber(redis.call("GET", queue.limiter) or 0)
  if started >= max then
    local ttl = redis.call("PTTL", queue.limiter)
    local longest = (limiter and limiter.duration or gate.duration or 1000) + LONGEST_WINDOW_APART
    if ttl > 0 and (ttl <= longest or started >= 9007199254740991) then return 0, ttl end
    if ttl >= 0 then redis.call("DEL", queue.limiter) end
    started = 0
  end
  return math.min(count, max - started), 0
end

local function countStart(queue, gate, limiter)
  if redis.call("INCR", queue.limiter) == 1 then
    redis.call("PEXPIRE", queue.limiter, limiter and limiter.duration or gate.duration or 1000)
  end
end

--- Ids that may run next, already in `active`: the list before the priorities. Also returns the
--- scores of those that have one, by their place among the ids.
local function popReady(queue, count)
  local scores = {}
  if count == 0 then return {}, scores end
  if count == 1 then
    local id = redis.call("LMOVE", queue.wait, queue.active, "RIGHT", "LEFT")
    if id then return { id }, scores end
  end
  local ids = count > 1 and redis.call("RPOP", queue.wait, count) or {}
  if #ids < count then
    local popped = redis.call("ZPOPMIN", queue.prioritized, count - #ids)
    if #popped == 0 then
      redis.call("DEL", queue.pc)
    end
    for i = 1, #popped, 2 do
      ids[#ids + 1] = popped[i]
      scores[#ids] = popped[i + 1]
    end
  end
  if #ids > 0 then
    redis.call("LPUSH", queue.active, unpack(ids))
  end
  return ids, scores
end

--- Put the ids from `first` on back where popReady took them from.
local function unpop(queue, ids, scores, first)
  for i = #ids, first, -1 do
    redis.call("LREM", queue.active, 1, ids[i])
    if scores[i] then
      redis.call("ZADD", queue.prioritized, scores[i], ids[i])
    else
      redis.call("RPUSH", queue.wait, ids[i])
    end
  end
end

--- A member of a group that is over or being undone does not run: a tool that does not know about groups
--- brought it back, and nothing would undo it again. It fails for good here, unless somebody forced its
--- retry. If its last run has an unknown outcome, it may have done its work. Returns whether it ended.
--- A compensation that failed and was brought back runs, and its group is told; so does a member that
--- blocks its group.
local function endStranded(queue, gate, id, membership, is_again, now)
  local job = queue.base .. ":" .. id
  local state, is_blocked = groups.stateOf(membership, job, is_again)
  if state == "ACTIVE" then
    if is_again or is_blocked then groups.onTaken(membership, job, is_blocked, now) end
    return false
  end
  if redis.call("HDEL", job, "x.forced") == 1 then return false end
  redis.call("LREM", queue.active, 1, id)
  if redis.call("HEXISTS", job, "ats") == 1 then jobs.noteOpenEnd(job) end
  local reason = state == "COMPENSATING" and "its group is being undone" or "its group has ended"
  jobs.finish(queue, gate, { id = id, state = "failed", value = reason, previous = "waiting" },
    jobs.readEnding(job), nil, now)
  queue.has_stranded = true
  return true
end

--- Record that an attempt begins, and what the previous one left.
local function noteStart(job, hash, stamp, started, name, fence)
  local past, before
  if started > 1 then past, before = tries.pastOf(hash) end
  if past then
    -- An empty name is better than the previous worker's.
    local words = { "processedOn", stamp, "ats", clock.digits(started), "x.attempts", past }
    if name or before then words[7], words[8] = "pb", name or "" end
    if fence then words[#words + 1], words[#words + 2] = "x.fence", fence end
    redis.call("HSET", job, unpack(words))
  elseif name and fence then
    redis.call("HSET", job, "processedOn", stamp, "pb", name, "ats", clock.digits(started), "x.fence", fence)
  elseif name then
    redis.call("HSET", job, "processedOn", stamp, "pb", name, "ats", clock.digits(started))
  elseif fence then
    redis.call("HSET", job, "processedOn", stamp, "ats", clock.digits(started), "x.fence", fence)
  else
    redis.call("HSET", job, "processedOn", stamp, "ats", clock.digits(started))
  end
end

--- Lock one job for the worker that sent the arguments `a`. Returns what it is told (nothing for an id without a job, or for one
--- that may not run), whether it only has to fail the job, and how many bytes were read. `place` is the
--- place that a job of a lane had there, and `hash` what was read of it.
local function startJob(queue, gate, id, a, now, fence, place, hash)
  local job = queue.base .. ":" .. id
  hash = hash or redis.call("HGETALL", job)
  local is_job, is_doomed, started, lane, membership, size = false, false, 1, nil, nil, 0
  for i = 1, #hash, 2 do
    local field = hash[i]
    size = size + #hash[i + 1]
    if field == "name" then
      is_job = true
    elseif field == "ats" then
      started = (tonumber(hash[i + 1]) or 0) + 1
    elseif field == "defa" then
      is_doomed = true
    elseif field == "x.lane" then
      lane = hash[i + 1]
    elseif field == "x.group" then
      membership = hash[i + 1]
    end
  end
  if not is_job then
    redis.call("LREM", queue.active, 1, id)
    return nil, false, size
  end
  if membership and not is_doomed and endStranded(queue, gate, id, membership, started > 1, now) then
    return nil, false, size
  end
  if place and lane ~= place then
    -- The code that ends the job must find the lane that it holds.
    redis.call("HSET", job, "x.lane", place)
  end
  if lane and not fence then
    fence = laneTakes.admitStray(queue, lane, id)
    if not fence then
      redis.call("LREM", queue.active, 1, id)
      return nil, false, size
    end
  end
  redis.call("SET", job .. ":lock", a.token, "PX", a.lock_ms)
  journal.emit(queue, "active", "jobId", id, "prev", "waiting")
  noteStart(job, hash, clock.stamp(now), started, a.name, fence and clock.digits(fence))
  -- Later fields win: these replace what was read above.
  local n = #hash
  if fence then
    hash[n + 1], hash[n + 2] = "x.fence", fence
    n = n + 2
  end
  hash[n + 1], hash[n + 2], hash[n + 3], hash[n + 4] = "ats", started, "processedOn", now
  hash[n + 5] = id
  return hash, is_doomed, size
end

--- Let in what is due. Returns whether there is any lane from which a job could be taken now or later.
--- Most queues have neither lanes nor delayed jobs, and one question is enough.
local function letInDue(queue, gate, now)
  local ready, delayed, later = queue["lanes:ready"], queue["lanes:delayed"], queue["lanes:later"]
  if redis.call("EXISTS", queue.delayed, ready, delayed, later) == 0 then return false end
  places.promoteDue(queue, gate, now)
  if redis.call("EXISTS", ready, delayed, later) == 0 then return false end
  laneTakes.promoteDue(queue, gate, now)
  return true
end

--- The most bytes of jobs for one call: more would block the server for everybody else.
local MOST_BYTES = 500000

--- Start one job for the shift. What it holds must not keep the others from being taken: if it cannot
--- be read, it is given up. Returns whether one more was taken.
local function start(shift, id, fence, place, hash)
  local queue = shift.queue
  shift.popped = shift.popped + 1
  local is_sound, taken, is_doomed, size =
    pcall(startJob, queue, shift.gate, id, shift.a, shift.now, fence, place, hash)
  if not is_sound then
    damage.abandon(queue, id, damage.of(queue, taken), shift.now)
    redis.call("LREM", queue.active, 1, id)
    redis.call("DEL", queue.base .. ":" .. id .. ":lock")
    return false
  end
  shift.bytes = shift.bytes + size
  if not taken then return false end
  shift.jobs[#shift.jobs + 1] = taken
  if (shift.gate.max or shift.limiter) and not is_doomed then
    countStart(queue, shift.gate, shift.limiter)
  end
  return true
end

local function startPlain(shift, most)
  local ids, scores = popReady(shift.queue, most)
  for i, id in ipairs(ids) do
    if shift.bytes >= MOST_BYTES then
      unpop(shift.queue, ids, scores, i)
      break
    end
    start(shift, id)
  end
end

local function startFromLanes(shift, most)
  local taken, bytes = laneTakes.pop(shift.queue, most, MOST_BYTES)
  for _, job in ipairs(taken) do
    -- An id without a job must not hold its lane.
    if not start(shift, job.id, job.fence, job.field, job.hash) then
      lanes.release(shift.queue, job.field, job.id)
    end
  end
  shift.bytes = math.max(shift.bytes, bytes)
end

--- Plain jobs and lanes share the slots; what one side does not need, the other gets. The plain ones
--- come first: a job of a lane among them goes to its lane before the lane is asked for its head.
local function startAll(shift, allowed, has_lanes)
  local plain = has_lanes and laneTakes.plainShare(shift.queue, allowed) or allowed
  startPlain(shift, plain)
  if #shift.jobs == allowed or not (has_lanes or rawget(shift.queue, "lanes")) then return end
  startFromLanes(shift, allowed - #shift.jobs)
  if plain > 0 and #shift.jobs < allowed and shift.bytes < MOST_BYTES then
    startPlain(shift, allowed - #shift.jobs)
  end
end

local function dueNext(queue, has_lanes)
  local due = places.nextDue(queue)
  return has_lanes and laneTakes.nextDue(queue, due) or due
end

--- The same for a worker that will wait for it. If that worker died, the others would look only after
--- their drain delay: so the marker is put back for one more of them. Once for each time: if it were
--- more, idle workers would hand it to and fro until then.
local function watchNext(queue, gate, has_lanes)
  local due = dueNext(queue, has_lanes)
  if due <= 0 then return due end
  local at = clock.digits(due) -- compared as text: a damaged score may be a fraction
  if at ~= gate.watched then
    redis.call("HSET", queue.meta, "x.watched", at)
    -- What was let in has put one there.
    if not rawget(queue, "let_in") then redis.call("ZADD", queue.marker, at, "1") end
  end
  return due
end

--- Returns the jobs, how long the rate limit holds, and when the next delayed job is due. If there are
--- as many jobs as may be taken, the last is 0, or now if there was too much to take at once.
function takes.take(queue, gate, a, now)
  local limiter = a.limiter
  local has_lanes = letInDue(queue, gate, now)
  local allowed, rate_limit_ms = allowance(queue, gate, limiter, a.take)
  if rate_limit_ms > 0 then return {}, rate_limit_ms, dueNext(queue, has_lanes) end
  if gate.paused then return {}, 0, 0 end
  if gate.concurrency then
    allowed = math.min(allowed, gate.concurrency - redis.call("LLEN", queue.active))
    if allowed <= 0 then return {}, 0, 0 end
  end

  local shift = { queue = queue, gate = gate, a = a, limiter = limiter, now = now, jobs = {},
    popped = 0, bytes = 0 }
  startAll(shift, allowed, has_lanes)
  if #shift.jobs == 0 then
    -- None of what was taken could run; the next worker to look finds what is behind it.
    if shift.popped > 0 and redis.call("EXISTS", queue.wait, queue.prioritized) > 0 then
      places.wake(queue, gate)
    end
    return {}, 0, watchNext(queue, gate, has_lanes)
  end
  if shift.popped < allowed and shift.bytes < MOST_BYTES and not (has_lanes or rawget(queue, "lanes")) then
    -- There was less than it asked for, so nobody has to look at what is left.
    return shift.jobs, 0, watchNext(queue, gate, false)
  end
  redis.call("ZADD", queue.marker, "0", "0")
  lanes.told(queue)
  return shift.jobs, 0, shift.bytes >= MOST_BYTES and now or 0
end
