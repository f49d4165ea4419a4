--- Tell an idle worker that there is something to take, if anything may be taken.
function places.wake(queue, gate)
  if gates.isOpen(queue, gate) then
    redis.call("ZADD", queue.marker, "0", "0")
  end
  lanes.told(queue)
end

--- Tell an idle worker when the first delayed job is due.
function places.wakeWhenDue(queue)
  local first = redis.call("ZRANGE", queue.delayed, 0, 0, "WITHSCORES")
  if first[2] then
    redis.call("ZADD", queue.marker, tonumber(first[2]) / 4096, "1")
  end
end

--- Put a job where workers take from: the back of the list, or its place by priority.
--- `push` is LPUSH for the back, RPUSH for the front. A script that adds many collects those for the
--- back in `queue.pushing`, and writes all but the first at once: if that one can be written, all can.
function places.ready(queue, gate, id, priority, push)
  if priority > 0 then
    local order = redis.call("INCR", queue.pc) % 4294967296
    redis.call("ZADD", queue.prioritized, priority * 4294967296 + order, id)
    return
  end
  local pushing = push == "LPUSH" and rawget(queue, "pushing")
  if pushing then
    pushing[#pushing + 1] = id
    if #pushing > 1 then return end
  end
  redis.call(push or "LPUSH", gates.readyList(queue, gate), id)
end

function places.pushCollected(queue, gate)
  local pushing = rawget(queue, "pushing")
  if not pushing or #pushing < 2 then return end
  redis.call("LPUSH", gates.readyList(queue, gate), unpack(pushing, 2))
  queue.pushing = {}
end

--- Put a job before all others of its priority.
function places.first(queue, gate, id, priority)
  if priority > 0 then
    redis.call("ZADD", queue.prioritized, priority * 4294967296, id)
  else
    redis.call("RPUSH", gates.readyList(queue, gate), id)
  end
end

--- Delay a job until `due_ms`. Jobs due in the same millisecond keep their order: the low twelve
--- bits of the score count them.
function places.delay(queue, id, due_ms)
  local first = due_ms * 4096
  local last = redis.call("ZREVRANGEBYSCORE", queue.delayed, first + 4095, first,
    "WITHSCORES", "LIMIT", 0, 1)
  local score = first
  if last[2] then
    score = math.min(tonumber(last[2]) + 1, first + 4095)
  end
  redis.call("ZADD", queue.delayed, score, id)
end

--- The time at which the first delayed job is due, or 0.
function places.nextDue(queue)
  local first = redis.call("ZRANGE", queue.delayed, 0, 0, "WITHSCORES")
  return first[2] and math.floor(tonumber(first[2]) / 4096) or 0
end

--- How many delayed jobs one call lets in, whatever else it does: the next call finds the rest of what
--- is due.
local MOST_DUE = 200

--- Let in one that was due at `due_ms`. A job that never started could first run then: another program
--- may have changed its delay without writing that down.
local function letIn(queue, gate, id, due_ms)
  local job = queue.base .. ":" .. id
  -- A key that does not hold a hash must not block the others; the worker that takes it finds out.
  local known = hashes.tryRead(job, "name", "priority", "ats")
  places.ready(queue, gate, id, tonumber(known.priority) or 0)
  journal.emit(queue, "waiting", "jobId", id, "prev", "delayed")
  if known.ats then
    redis.call("HSET", job, "delay", 0)
  elseif known.name then -- a hash that held only this would keep its id from others
    redis.pcall("HSET", job, "delay", 0, "x.due", clock.digits(due_ms))
  end
end

--- Let in the delayed jobs whose time has come.
function places.promoteDue(queue, gate, now)
  local let_in = rawget(queue, "let_in") or 0
  if let_in >= MOST_DUE then return end
  local due = redis.call("ZRANGEBYSCORE", queue.delayed, 0, (now + 1) * 4096 - 1,
    "WITHSCORES", "LIMIT", 0, MOST_DUE - let_in)
  if #due == 0 then return end
  local ids = {}
  for i = 1, #due, 2 do ids[#ids + 1] = due[i] end
  queue.let_in = let_in + #ids
  redis.call("ZREM", queue.delayed, unpack(ids))
  for i, id in ipairs(ids) do
    letIn(queue, gate, id, math.floor(tonumber(due[2 * i]) / 4096))
  end
  places.wake(queue, gate)
end

--- A job that never started could first run now: somebody promoted it. (Its key may hold anything.)
function places.noteDue(job)
  local known = hashes.tryRead(job, "name", "ats")
  if known.name and not known.ats then
    redis.pcall("HSET", job, "x.due", clock.stamp(clock.now()))
  end
end

--- Let a job that has already left `delayed` run now.
function places.promote(queue, gate, id)
  local job = queue.base .. ":" .. id
  local known = hashes.tryRead(job, "name", "priority", "ats")
  if not known.name then return false end
  places.ready(queue, gate, id, tonumber(known.priority) or 0)
  if known.ats then
    redis.call("HSET", job, "delay", 0)
  else
    redis.call("HSET", job, "delay", 0, "x.due", clock.stamp(clock.now()))
  end
  journal.emitTrimmed(queue, gate, "waiting", "jobId", id, "prev", "delayed")
  return true
end

--- Is the job in one of these lists? Searching takes time in proportion to their length, so the answer
--- is nil if they have more than `most` jobs.
function places.isListed(id, most, ...)
  local lists, length = { ... }, 0
  for _, list in ipairs(lists) do
    length = length + redis.call("LLEN", list)
  end
  if length > most then return nil end
  for _, list in ipairs(lists) do
    if redis.call("LPOS", list, id) then return true end
  end
  return false
end

local SORTED_PLACES = { "completed", "waiting_children", "delayed", "failed", "prioritized" }
local LISTED_PLACES = { "wait", "paused", "active" }

--- Take a job out of wherever it is; returns the place by its name on the wire. Finding it in a list
--- takes time in proportion to its length, so the lists are searched last.
function places.takeOut(queue, id)
  for _, place in ipairs(SORTED_PLACES) do
    if redis.call("ZREM", queue[place], id) == 1 then
      return (string.gsub(place, "_", "-"))
    end
  end
  local lane = redis.call("HGET", queue.base .. ":" .. id, "x.lane")
  local place = lane and lanes.leave(queue, lane, id)
  if place then return place end
  for _, place in ipairs(LISTED_PLACES) do
    if redis.call("LREM", queue[place], 1, id) == 1 then
      if place == "active" then redis.call("SREM", queue.stalled, id) end
      return place
    end
  end
  return "unknown"
end

local LISTS = { "wait", "paused", "active" }
local SETS = { "prioritized", "delayed", "waiting_children", "completed", "failed", "lanes:waiting",
  "lanes:delayed" }

--- How many jobs are in each place, in the order of these two lists.
function places.counts(queue)
  local counts = {}
  for _, list in ipairs(LISTS) do
    counts[#counts + 1] = redis.call("LLEN", queue[list])
  end
  for _, set in ipairs(SETS) do
    counts[#counts + 1] = redis.call("ZCARD", queue[set])
  end
  return counts
end
