--- A queue held by hand: the counter of the rate limit is set to the highest number for a while.
--- Workers of BullMQ look at the counter only when a limit is set; ours see the mark in `meta`.
local HELD = "9007199254740991"

local function holdBack(queue, gate, duration_ms)
  redis.call("SET", queue.limiter, HELD, "PX", duration_ms)
  redis.call("HSET", queue.meta, "x.held", 1)
  gate.is_held = true
end

--- For how long the queue is held yet; the mark goes when the time is over.
local function heldFor(queue, gate)
  if redis.call("GET", queue.limiter) == HELD then
    local ttl = redis.call("PTTL", queue.limiter)
    if ttl > 0 then return ttl end
  end
  redis.call("HDEL", queue.meta, "x.held")
  gate.is_held = false
  return 0
end
