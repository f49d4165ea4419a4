--- The queue's settings as far as they decide what may run: read once per call.
--- `ready` is the list that takes jobs which can run at once. BullMQ 5 keeps them in `paused` while
--- the queue is paused, and its resume renames that list over `wait`: jobs put into `wait` meanwhile
--- would be lost.
local function readGate(queue)
  local meta = redis.call("HMGET", queue.meta, "paused", "concurrency", "opts.maxLenEvents",
    "version", "max", "duration", "x.held")
  if not meta[3] then
    redis.call("HSET", queue.meta, "opts.maxLenEvents", 10000)
  end
  local gate = {
    paused = meta[1] ~= false,
    concurrency = tonumber(meta[2]),
    max_events = meta[3] or "10000",
    is_version_5 = meta[4] ~= false and string.find(meta[4], "^bullmq:5%.") ~= nil,
    max = tonumber(meta[5]),
    duration = tonumber(meta[6]),
    is_held = meta[7] ~= false,
    ready = queue.wait
  }
  if gate.paused and (gate.is_version_5 or redis.call("EXISTS", queue.paused) == 1) then
    gate.ready = queue.paused
  end
  return gate
end

--- May a worker take something now?
local function isOpen(queue, gate)
  if gate.paused then return false end
  return not gate.concurrency or redis.call("LLEN", queue.active) < gate.concurrency
end
