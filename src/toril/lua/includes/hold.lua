--- A queue held by hand: the counter of the rate limit is set to the highest number for a while.
--- Workers of BullMQ look at the counter only when a limit is set; ours see the mark in `meta`, which
--- tells for how long: a clock that is set back must not make it longer. (1 is an older mark.)
local HELD = "9007199254740991"

local function holdBack(queue, gate, duration_ms)
  redis.call("SET", queue.limiter, HELD, "PX", duration_ms)
  redis.call("HSET", queue.meta, "x.held", digits(duration_ms))
  gate.held_ms = duration_ms
end

--- For how long the queue is held yet; the mark goes when the time is over.
local function heldFor(queue, gate)
  if redis.call("GET", queue.limiter) == HELD then
    local ttl = redis.call("PTTL", queue.limiter)
    if ttl > 0 and (ttl <= gate.held_ms or gate.held_ms <= 1) then return ttl end
    if ttl > 0 then redis.call("DEL", queue.limiter) end
  end
  redis.call("HDEL", queue.meta, "x.held")
  gate.held_ms = nil
  return 0
end
