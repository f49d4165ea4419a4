--- Note which version of BullMQ has opened the queue.
local function noteVersion(queue, gate, meta)
  local major = tonumber(string.match(meta.version or "", "^bullmq:(%d+)%.")) or 0
  -- The next program that opens the queue overwrites this version with its own.
  if major == 5 and not meta["x.seen5"] then
    redis.call("HSET", queue.meta, "x.seen5", 1)
  end
  gate.is_version_5 = major == 5
  gate.stays_in_wait = major >= 6
  gate.was_version_5 = major == 5 or meta["x.seen5"] ~= nil
end

--- The queue's settings that decide what may run: read once per call. Most queues have one or two, so
--- reading all of them costs less than asking for each that could be set. What was read last is in
--- `queue.gate`.
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
    watched = meta["x.watched"],
    holds_letters = meta["toril.deadLetters"] ~= nil
  }
  if meta.version or meta["x.seen5"] then noteVersion(queue, gate, meta) end
  queue.gate = gate
  return gate
end

--- The list for jobs that can run immediately.
--- BullMQ 5 keeps them in `paused` while the queue is paused, and its resume renames that list over
--- `wait`: what is in `wait` then is lost. BullMQ 6 leaves them in `wait` and brings back what is in
--- `paused`. The version in `meta` is only that of the last program that opened the queue, and some
--- write none; so we use `paused`, unless the queue belongs to BullMQ 6 and its jobs are in `wait`.
--- If jobs are in both lists, they are merged into one, a hundred at a time.
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

--- A queue held by hand: the rate limit's counter is set to the highest number for a while.
--- BullMQ workers look at the counter only if a limit is set; ours see the mark in `meta`, which says
--- for how long: a clock that is set back must not make it longer. (1 is an older mark.)
local HELD = "9007199254740991"

function gates.hold(queue, gate, duration_ms)
  redis.call("SET", queue.limiter, HELD, "PX", duration_ms)
  redis.call("HSET", queue.meta, "x.held", clock.digits(duration_ms))
  gate.held_ms = duration_ms
end

--- How much longer the queue is held; the mark is removed when the time is up.
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
