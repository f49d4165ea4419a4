--- @lazily for letters
--- @include "includes/jsonText"
--- @include "includes/spliceMeta"

--- Move a job that failed for good into the queue of the dead letters: a new job there, with its own
--- id, whose data are the old ones and the metadata. The caller has taken it out of its place.
---
--- `dead_letters` is what openDeadLetters gave; the script ends with closeDeadLetters.
--- `trouble` is what jobs have in common that failed in the same way and had the same options:
--- { metadata, note, stacktrace (the source is kept and gets it) }. `metadata` and `note` are members of
--- JSON objects, each with a comma before it; what is a job's own comes before them.

--- Draw the numbers of the next `count` letters. The counter may have been lost or set back, so numbers
--- that jobs have are passed over, in steps that double. Whether any of the keys `beside` exists is
--- asked in the same command; returns that.
local function drawLetterIds(dead_letters, count, beside)
  local step, keys, asked, found, in_use = count, {}, { unpack(beside) }, nil, nil
  repeat
    dead_letters.last = redis.call("INCRBY", dead_letters.queue.id, digits(step))
    for i = 1, count do
      keys[i] = dead_letters.prefix .. string.format("%d", dead_letters.last - count + i)
      asked[#beside + i] = keys[i]
    end
    found = redis.call("EXISTS", unpack(asked))
    in_use = found > 0 and redis.call("EXISTS", unpack(keys)) or 0
    step = 2 * step
  until in_use == 0
  dead_letters.drawn = count
  return found > 0
end

--- The target at `base` for jobs of the queue called `source`; `jobs` are the keys of those that will
--- probably go there in this call, so that what they have in common is asked for once: has any of them
--- logs or children?
local function openDeadLetters(base, name, source, jobs, has_children, troubles, now)
  local target = queueAt(base)
  local beside = {}
  for i, job in ipairs(jobs) do
    local n = 3 * i
    beside[n - 2], beside[n - 1], beside[n] = job .. ":logs", job .. ":processed", job .. ":failed"
  end
  for _, trouble in ipairs(troubles) do
    trouble.plain_end = ',"deadLetteredAt":' .. stamp(now) .. trouble.metadata .. "}}"
  end
  local dead_letters = { queue = target, gate = readGate(target), prefix = base .. ":", name = name,
    source = source, stamp = stamp(now), drawn = 0, ids = {}, moved = {}, has_more = has_children }
  if #jobs > 0 then
    dead_letters.has_more = drawLetterIds(dead_letters, #jobs, beside) or has_children
  end
  return dead_letters
end

local MORE_REMOVED = 50

--- Remove the oldest letters that are not to be kept, of `length` in the list: as many as came, and a
--- few more. Any other job ends it. So does a walk that turns the list: its oldest are elsewhere.
local function retainLetters(dead_letters, list, length, now)
  local keep, target = dead_letters.keep, dead_letters.queue
  local excess = type(keep.count) == "number" and length - keep.count or 0
  local oldest_ms = type(keep.age) == "number" and now - keep.age or nil
  if excess <= 0 and not oldest_ms then return end
  if redis.call("EXISTS", target.base .. ":toril:turning") == 1 then return end
  local removed = {}
  for i = 1, #dead_letters.ids + MORE_REMOVED do
    local letter = dead_letters.prefix .. (redis.call("LINDEX", list, -1) or "")
    local known = redis.call("HMGET", letter, "x.letter", "timestamp")
    local is_old = oldest_ms and (tonumber(known[2]) or now) < oldest_ms
    if not known[1] or i > excess and not is_old then break end
    redis.call("RPOP", list)
    removed[i] = letter
  end
  if #removed == 0 then return end
  deleteJobs(removed)
  redis.call("HINCRBY", target.meta, "x.purged", digits(#removed))
  emit(target, "cleaned", "count", digits(#removed))
end

--- Put what was written into the target's list, all at once, wake a worker there and count it.
local function closeDeadLetters(queue, dead_letters, now)
  if not dead_letters or #dead_letters.ids == 0 then return end
  local target, gate = dead_letters.queue, dead_letters.gate
  if dead_letters.has_more then
    deleteJobs(dead_letters.moved)
  elseif #dead_letters.moved > 0 then
    redis.call("UNLINK", unpack(dead_letters.moved))
  end
  local list = readyList(target, gate)
  local length = redis.call("LPUSH", list, unpack(dead_letters.ids))
  if dead_letters.keep then retainLetters(dead_letters, list, length, now) end
  if not gate.holds_letters then redis.call("HSET", target.meta, "toril.deadLetters", 1) end
  trimEvents(target, gate)
  wake(target, gate)
  redis.call("HINCRBY", queue.meta, "x.deadLettered", digits(#dead_letters.ids))
end

local function drawLetterId(dead_letters)
  if dead_letters.drawn == 0 then drawLetterIds(dead_letters, 1, {}) end
  dead_letters.drawn = dead_letters.drawn - 1
  local id = string.format("%d", dead_letters.last - dead_letters.drawn)
  dead_letters.ids[#dead_letters.ids + 1] = id
  return id
end

--- A whole number of a hash, as JSON has it; 0 for one that somebody damaged.
local function wholeNumber(text)
  return text and string.match(text, "^[1-9]%d*$") or "0"
end

--- What scripts need to know of a letter later, as they cannot decode its data. It is the same for all
--- in the same trouble whose metadata have `size` bytes; the job's own come first in these.
local function writeNote(trouble, size)
  trouble.noted_size, trouble.noted = size, '{"size":' .. digits(size) .. trouble.note .. "}"
  return trouble.noted
end

--- What few letters have: data that are no object or no JSON, a group, earlier lives.
local function writeRest(letter, raw_data, is_wrapped, group, lives)
  if raw_data then
    redis.call("HSET", letter, "x.data", raw_data)
  elseif is_wrapped then
    redis.call("HSET", letter, "x.wrapped", "1")
  end
  if group then
    redis.call("HSET", letter, "x.member", group)
  end
  for field, value in pairs(lives) do
    if value then redis.call("HSET", letter, field, value) end
  end
end

--- How often a job came back from the dead letters, when, and with which data at first.
local function earlierLives(replays, history, original)
  if not replays then return "" end
  return ',"replays":' .. wholeNumber(replays) .. ',"history":[' .. (history or "") .. "]"
    .. (original and ',"originalData":' .. original or "")
end

--- `ended` = { id, trouble, is_raw (the data are no JSON) }, `known` is what readEnding gave.
--- Returns the id among the dead letters.
local function deadLetter(queue, dead_letters, ended, known)
  local job, trouble = queue.base .. ":" .. ended.id, ended.trouble
  local hash = redis.call("HMGET", job, "data", "timestamp", "x.replays", "x.history", "x.original")
  local data = hash[1] or "{}"
  local metadata = '{"originalJobId":' .. jsonText(ended.id) .. ',"originalTimestamp":'
    .. wholeNumber(hash[2]) .. ',"deadLetteredAt":' .. dead_letters.stamp
    .. earlierLives(hash[3], hash[4], hash[5]) .. trouble.metadata .. "}"
  local text, is_wrapped = spliceMeta(ended.is_raw and "null" or data, metadata)
  local id = drawLetterId(dead_letters)
  local letter = dead_letters.prefix .. id
  redis.call("HSET", letter, "name", known.name, "data", text, "opts", '{"attempts":0}',
    "timestamp", dead_letters.stamp, "delay", "0", "priority", "0", "x.letter",
    writeNote(trouble, #metadata))
  writeRest(letter, ended.is_raw and data, is_wrapped, known.group,
    { ["x.replays"] = hash[3], ["x.history"] = hash[4], ["x.original"] = hash[5] })
  if dead_letters.has_more and redis.call("EXISTS", job .. ":logs") == 1 then
    redis.call(trouble.stacktrace and "COPY" or "RENAME", job .. ":logs", letter .. ":logs")
  end
  emit(dead_letters.queue, "waiting", "jobId", id)
  return id
end
