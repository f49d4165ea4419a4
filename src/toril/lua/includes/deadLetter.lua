--- @lazily
--- @include "includes/jsonText"
--- @include "includes/spliceMeta"

--- Move a job that failed for good into the queue of the dead letters: a new job there, with its own
--- id, whose data are the old ones and the metadata. The caller has taken it out of its place.
---
--- `dead_letters` is what openDeadLetters gave; the script ends with closeDeadLetters.
--- `ended` = { id, value, stacktrace, dead }: the reason, the stack traces as JSON, and what the
--- worker says; of `dead` = { message, why, type, cause, fingerprint, opts, priority, delay, lane,
--- order_ms, is_raw, keeps_source } only `cause` must be there. Returns the id among the dead letters.

--- The target at `base` for jobs of the queue called `source`; `expected` is how many will probably go
--- there in this call, so that their ids are drawn at once.
local function openDeadLetters(base, name, source, expected)
  local target = queueAt(base)
  return { queue = target, gate = readGate(target), name = name, source = source,
    source_json = jsonText(source), expected = expected, drawn = 0, ids = {} }
end

--- Put what was written into the target's list, all at once, wake a worker there and count it.
local function closeDeadLetters(queue, dead_letters)
  if not dead_letters or #dead_letters.ids == 0 then return end
  local target, gate = dead_letters.queue, dead_letters.gate
  redis.call("LPUSH", gate.ready, unpack(dead_letters.ids))
  trimEvents(target, gate)
  wake(target, gate)
  redis.call("HINCRBY", queue.meta, "x.deadLettered", digits(#dead_letters.ids))
end

local function drawLetterId(dead_letters)
  if dead_letters.drawn == 0 then
    dead_letters.drawn = math.max(dead_letters.expected - #dead_letters.ids, 1)
    dead_letters.last = redis.call("INCRBY", dead_letters.queue.id, digits(dead_letters.drawn))
  end
  dead_letters.drawn = dead_letters.drawn - 1
  local id = string.format("%.0f", dead_letters.last - dead_letters.drawn)
  dead_letters.ids[#dead_letters.ids + 1] = id
  return id
end

--- The metadata as JSON. Traces, options and history are JSON already and are taken over as they are.
local function letterMeta(dead_letters, ended, known, attempts_made, now)
  local dead = ended.dead
  local opts = known[3]
  if not opts or string.sub(opts, 1, 1) ~= "{" then opts = "{}" end
  local stacktrace = ended.stacktrace
  if not stacktrace or stacktrace == "" then stacktrace = "[]" end
  local parts = {
    '{"sourceQueue":', dead_letters.source_json,
    ',"originalJobId":', jsonText(ended.id),
    ',"failedReason":', jsonText(dead.message or ended.value),
    ',"stacktrace":', stacktrace,
    ',"attemptsMade":', digits(attempts_made),
    ',"deadLetteredAt":', stamp(now),
    ',"originalTimestamp":', string.match(known[4] or "", "^%d+$") or "0",
    ',"originalOpts":', opts,
    ',"errorType":', jsonText(dead.type or ""),
    ',"fingerprint":', jsonText(dead.fingerprint or dead.cause),
    ',"cause":', jsonText(dead.cause),
    ',"replays":', known[5] or "0",
    ',"history":[', known[6] or "", "]"
  }
  if known[7] then
    parts[#parts + 1] = ',"originalData":'
    parts[#parts + 1] = known[7]
  end
  parts[#parts + 1] = "}"
  return table.concat(parts)
end

local function deadLetter(queue, dead_letters, ended, attempts_made, now)
  local job = queue.base .. ":" .. ended.id
  local dead, target = ended.dead, dead_letters.queue
  local known = redis.call("HMGET", job, "name", "data", "opts", "timestamp", "x.replays",
    "x.history", "x.original", "x.group")
  local data = known[2] or "{}"
  local meta = letterMeta(dead_letters, ended, known, attempts_made, now)
  local text, cut
  if dead.is_raw then
    text = spliceMeta("null", meta)
  else
    text, cut = spliceMeta(data, meta)
  end

  local id = drawLetterId(dead_letters)
  local letter = target.base .. ":" .. id
  local fields = { "name", known[1], "data", text, "opts", '{"attempts":0}', "timestamp",
    stamp(now), "delay", "0", "priority", "0", "x.source", dead_letters.source, "x.job", ended.id,
    "x.why", dead.why or string.lower(ended.value), "x.fp", dead.fingerprint or dead.cause,
    "x.opts", dead.opts or known[3] or "{}" }
  local optional = { ["x.cut"] = cut or false, ["x.data"] = not cut and data, ["x.replays"] = known[5],
    ["x.history"] = known[6], ["x.original"] = known[7], ["x.member"] = known[8],
    ["x.priority"] = dead.priority or false, ["x.delay"] = dead.delay or false,
    ["x.inLane"] = dead.lane or false, ["x.order"] = dead.order_ms or false }
  for field, value in pairs(optional) do
    if value then
      fields[#fields + 1] = field
      fields[#fields + 1] = value
    end
  end
  redis.call("HSET", letter, unpack(fields))
  if redis.call("EXISTS", job .. ":logs") == 1 then
    redis.call(dead.keeps_source and "COPY" or "RENAME", job .. ":logs", letter .. ":logs")
  end

  emit(target, "added", "jobId", id, "name", known[1])
  emit(target, "waiting", "jobId", id)
  return id
end
