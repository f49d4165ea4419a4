--- @lazily for letters
--- @include "includes/jsonText"
--- @include "includes/spliceMeta"

--- Move a job that failed for good into the queue of the dead letters: a new job there, with its own
--- id, whose data are the old ones and the metadata. The caller has taken it out of its place.
---
--- `dead_letters` is what openDeadLetters gave; the script ends with closeDeadLetters.
--- `ended` = { id, metadata, note, dead }: the metadata as JSON, what scripts need to know of the letter
--- later as JSON, and `dead` = { after, stacktrace (the source is kept and gets it), is_raw, is_returned }.
--- `after` bytes come before the metadata: these are in the data already, as the worker knew them.
--- Returns the id among the dead letters.

--- The target at `base` for jobs of the queue called `source`; `jobs` are the keys of those that will
--- probably go there in this call, so that what they have in common is asked for once: has any of them
--- logs or children?
local function openDeadLetters(base, name, source, jobs, has_children)
  local target = queueAt(base)
  local beside = {}
  for _, job in ipairs(jobs) do
    local n = #beside
    beside[n + 1], beside[n + 2], beside[n + 3] = job .. ":logs", job .. ":processed", job .. ":failed"
  end
  return { queue = target, gate = readGate(target), name = name, source = source,
    expected = #jobs, drawn = 0, ids = {}, moved = {},
    has_more = has_children or redis.call("EXISTS", unpack(beside)) > 0 }
end

--- Put what was written into the target's list, all at once, wake a worker there and count it.
local function closeDeadLetters(queue, dead_letters)
  if not dead_letters or #dead_letters.ids == 0 then return end
  local target, gate = dead_letters.queue, dead_letters.gate
  if dead_letters.has_more then
    deleteJobs(dead_letters.moved)
  elseif #dead_letters.moved > 0 then
    redis.call("UNLINK", unpack(dead_letters.moved))
  end
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
  local id = string.format("%d", dead_letters.last - dead_letters.drawn)
  dead_letters.ids[#dead_letters.ids + 1] = id
  return id
end

--- What only few letters have: data that are no object or no JSON, a group, earlier lives.
local function writeRest(letter, job, dead, known, is_wrapped)
  if dead.is_raw then
    redis.call("HSET", letter, "x.data", known.data or "")
  elseif is_wrapped then
    redis.call("HSET", letter, "x.wrapped", "1")
  end
  if known.group then
    redis.call("HSET", letter, "x.member", known.group)
  end
  if not dead.is_returned then return end
  local earlier = redis.call("HMGET", job, "x.replays", "x.history", "x.original")
  for i, field in ipairs({ "x.replays", "x.history", "x.original" }) do
    if earlier[i] then redis.call("HSET", letter, field, earlier[i]) end
  end
end

--- Are the data those that the worker has put the metadata into, behind `after` bytes?
local function isUnchanged(data, text, after)
  return data and #data == after - 11 and string.find(text, string.sub(data, 1, -2), 1, true) == 1
end

--- The data of a letter and whether they were wrapped. Most come ready from the worker, and are only
--- made here if somebody has changed the data since.
local function letterText(data, metadata, dead)
  if dead.after == 0 then
    return spliceMeta(not dead.is_raw and (data or "{}") or "null", metadata)
  end
  if isUnchanged(data, metadata, dead.after) then return metadata, false end
  return spliceMeta(data or "{}", string.sub(metadata, dead.after + 1, -2))
end

--- `known` is what readEnding gave, with the data.
local function deadLetter(queue, dead_letters, ended, known, now)
  local job = queue.base .. ":" .. ended.id
  local dead, target = ended.dead, dead_letters.queue
  local text, is_wrapped = letterText(known.data, ended.metadata, dead)
  local id = drawLetterId(dead_letters)
  local letter = target.base .. ":" .. id
  redis.call("HSET", letter, "name", known.name, "data", text, "opts", '{"attempts":0}',
    "timestamp", stamp(now), "delay", "0", "priority", "0", "x.letter", ended.note)
  if is_wrapped or known.group or dead.is_returned then
    writeRest(letter, job, dead, known, is_wrapped)
  end
  if dead_letters.has_more and redis.call("EXISTS", job .. ":logs") == 1 then
    redis.call(dead.stacktrace and "COPY" or "RENAME", job .. ":logs", letter .. ":logs")
  end
  emit(target, "waiting", "jobId", id)
  return id
end
