--- The queue's settings as far as they decide what may run: read once per call.
local function readGate(queue)
  local meta = redis.call("HMGET", queue.meta, "paused", "concurrency", "opts.maxLenEvents",
    "version", "max", "duration", "x.held", "toril.deadLetters", "x.seen5")
  if not meta[3] then
    redis.call("HSET", queue.meta, "opts.maxLenEvents", 10000)
  end
  local major = tonumber(string.match(meta[4] or "", "^bullmq:(%d+)%.")) or 0
  -- The next program that opens the queue writes its own version over this one.
  if major == 5 and not meta[9] then
    redis.call("HSET", queue.meta, "x.seen5", 1)
  end
  return {
    paused = meta[1] ~= false,
    concurrency = tonumber(meta[2]),
    max_events = string.match(meta[3] or "", "^%d+$") or "10000",
    is_version_5 = major == 5,
    stays_in_wait = major >= 6,
    was_version_5 = major == 5 or meta[9] ~= false,
    max = tonumber(meta[5]),
    duration = tonumber(meta[6]),
    held_ms = meta[7] and (tonumber(meta[7]) or 1) or nil,
    holds_letters = meta[8] ~= false
  }
end

--- The list that takes jobs which can run at once.
--- BullMQ 5 keeps them in `paused` while the queue is paused, and its resume renames that list over
--- `wait`: what is in `wait` then is lost. BullMQ 6 leaves them in `wait` and brings back what is in
--- `paused`. The version in `meta` is only that of the last program that opened the queue, and some
--- write none; so `paused` it is, unless the jobs of a queue of BullMQ 6 are in `wait` already.
--- What is in two lists is brought into one, a hundred jobs at a time.
local function readyList(queue, gate)
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
local function isOpen(queue, gate)
  if gate.paused then return false end
  return not gate.concurrency or redis.call("LLEN", queue.active) < gate.concurrency
end
