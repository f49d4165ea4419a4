--- Which BullMQ has opened the queue.
local function noteVersion(queue, gate, meta)
  local major = tonumber(string.match(meta.version or "", "^bullmq:(%d+)%.")) or 0
  -- The next program that opens the queue writes its own version over this one.
  if major == 5 and not meta["x.seen5"] then
    redis.call("HSET", queue.meta, "x.seen5", 1)
  end
  gate.is_version_5 = major == 5
  gate.stays_in_wait = major >= 6
  gate.was_version_5 = major == 5 or meta["x.seen5"] ~= nil
end

--- The queue's settings as far as they decide what may run: read once per call. Most queues have one
--- or two, so asking for all of them costs less than asking for those that could be there.
function gates.read(queue)
  local meta = hashes.all(queue.meta)
  local max_events, held = meta["opts.maxLenEvents"], meta["x.held"]
  if not max_events then
    redis.call("HSET", queue.meta, "opts.maxLenEvents", 10000)
  end
  local gate = {
    paused = meta.paused ~= nil,
    concurrency = tonumber(meta.concurrency),
    max_events = max_events and string.match(max_events, "^%d+$") or "10000",
    max = tonumber(meta.max),
    duration = tonumber(meta.duration),
    held_ms = held and (tonumber(held) or 1) or nil,
    holds_letters = meta["toril.deadLetters"] ~= nil
  }
  if meta.version or meta["x.seen5"] then noteVersion(queue, gate, meta) end
  return gate
end

--- The list that takes jobs which can run at once.
--- BullMQ 5 keeps them in `paused` while the queue is paused, and its resume renames that list over
--- `wait`: what is in `wait` then is lost. BullMQ 6 leaves them in `wait` and brings back what is in
--- `paused`. The version in `meta` is only that of the last program that opened the queue, and some
--- write none; so `paused` it is, unless the jobs of a queue of BullMQ 6 are in `wait` already.
--- What is in two lists is brought into one, a hundred jobs at a time.
function gates.readyList(queue, gate)
  if not gate.paused then return queue.wait end
  if gate.ready then return gate.ready end
  gate.ready = queue.paused
  if redis.call("EXISTS", queue.wait) == 1 then
    if redis.call("EXISTS", queue.paused) == 1 then
      redis.call("LPUSH", queue.paused, unpack(redis.call("RPOP", queue.wait, 100)))
    elseif gate.stays_in_wait then
      gate.ready = queue.wait
    else
      redis.call("RENAME", queue.wait, queue.paused)
    end
  end
  return gate.ready
end

--- May a worker take something now?
function gates.isOpen(queue, gate)
  if gate.paused then return false end
  return not gate.concurrency or redis.call("LLEN", queue.active) < gate.concurrency
end

--- A queue held by hand: the counter of the rate limit is set to the highest number for a while.
--- Workers of BullMQ look at the counter only when a limit is set; ours see the mark in `meta`, which
--- tells for how long: a clock that is set back must not make it longer. (1 is an older mark.)
local HELD = "9007199254740991"

function gates.hold(queue, gate, duration_ms)
  redis.call("SET", queue.limiter, HELD, "PX", duration_ms)
  redis.call("HSET", queue.meta, "x.held", clock.digits(duration_ms))
  gate.held_ms = duration_ms
end

--- For how long the queue is held yet; the mark goes when the time is over.
function gates.heldFor(queue, gate)
  if redis.call("GET", queue.limiter) == HELD then
    local ttl = redis.call("PTTL", queue.limiter)
    if ttl > 0 and (ttl <= gate.held_ms or gate.held_ms <= 1) then return ttl end
    if ttl > 0 then redis.call("DEL", queue.limiter) end
  end
  redis.call("HDEL", queue.meta, "x.held")
  gate.held_ms = nil
  return 0
end
