--- Tell an idle worker that there is something to take, if anything may be taken.
local function wake(queue, gate)
  if isOpen(queue, gate) then
    redis.call("ZADD", queue.marker, "0", "0")
  end
end

--- Tell an idle worker when the first delayed job is due.
local function wakeWhenDue(queue)
  local first = redis.call("ZRANGE", queue.delayed, 0, 0, "WITHSCORES")
  if first[2] then
    redis.call("ZADD", queue.marker, tonumber(first[2]) / 4096, "1")
  end
end

--- Put a job where workers take from: the back of the list, or its place among its priority.
--- `push` is LPUSH for the back, RPUSH for the front.
local function placeReady(queue, gate, id, priority, push)
  if priority > 0 then
    local order = redis.call("INCR", queue.pc) % 4294967296
    redis.call("ZADD", queue.prioritized, priority * 4294967296 + order, id)
  else
    redis.call(push or "LPUSH", readyList(queue, gate), id)
  end
end

--- Put a job before all others of its priority.
local function placeFirst(queue, gate, id, priority)
  if priority > 0 then
    redis.call("ZADD", queue.prioritized, priority * 4294967296, id)
  else
    redis.call("RPUSH", readyList(queue, gate), id)
  end
end

--- Put a job off until `due_ms`. Jobs due in the same millisecond keep their order: the low twelve
--- bits of the score count them.
local function placeDelayed(queue, id, due_ms)
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
local function nextDue(queue)
  local first = redis.call("ZRANGE", queue.delayed, 0, 0, "WITHSCORES")
  return first[2] and math.floor(tonumber(first[2]) / 4096) or 0
end
