--- Move a job that failed for good into the dead letter queue: a new job there, with its own id, whose
--- data are the old ones plus the metadata. The caller has taken it out of its place.
---
--- `dead_letters` is what burials.open returned; the script ends with burials.close.
--- `trouble` is what jobs that failed in the same way, with the same options, have in common:
--- { metadata, note, stacktrace (the source is kept and gets it) }. `metadata` and `note` are members of
--- JSON objects, each with a comma before it; a job's own members come before them.

--- Draw the numbers of the next `count` letters. The counter may have been lost or set back, so numbers
--- that jobs already have are skipped, in steps that double. Returns whether any of the keys `beside`
--- exists, which the same command asks.
local function drawLetterIds(dead_letters, count, beside)
  local step, keys, asked, found, in_use = count, {}, { unpack(beside) }, nil, nil
  repeat
    dead_letters.last = redis.call("INCRBY", dead_letters.queue.id, clock.digits(step))
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

--- The target at `base` for jobs of the queue called `source`; `job_keys` are those that will probably
--- go there in this call, so that what they have in common is asked only once: does any of them have
--- logs or children?
function burials.open(base, name, source, job_keys, has_children, troubles, now)
  local beside = {}
  for i, job in ipairs(job_keys) do
    local n = 3 * i
    beside[n - 2], beside[n - 1], beside[n] = job .. ":logs", job .. ":processed", job .. ":failed"
  end
  for _, trouble in ipairs(troubles) do
    trouble.plain_end = ',"deadLetteredAt":' .. clock.stamp(now) .. trouble.metadata .. "}}"
  end
  local dead_letters = { queue = queues.at(base), prefix = base .. ":", name = name, source = source,
    stamp = clock.stamp(now), drawn = 0, ids = {}, moved = {}, has_more = has_children }
  if parcels.isAway(base) then
    dead_letters.away = base
    if #beside > 0 then dead_letters.has_more = redis.call("EXISTS", unpack(beside)) > 0 or has_children end
    return dead_letters
  end
  dead_letters.gate = gates.read(dead_letters.queue)
  if #job_keys > 0 then
    dead_letters.has_more = drawLetterIds(dead_letters, #job_keys, beside) or has_children
  end
  return dead_letters
end

--- The same on the letters' own queue, for letters that come from other slots.
function burials.reopen(queue)
  return { queue = queue, gate = gates.read(queue), prefix = queue.base .. ":", ids = {} }
end

local MORE_REMOVED = 50

--- Remove the oldest letters beyond the retention, of `length` in the list: as many as came, and a few
--- more. It stops at any other job, and while a walk turns the list: the oldest are elsewhere then. A
--- letter whose key holds no hash is as old as can be.
local function retainLetters(dead_letters, list, length, now)
  local keep, target = dead_letters.keep, dead_letters.queue
  local excess = type(keep.count) == "number" and length - keep.count or 0
  local oldest_ms = type(keep.age) == "number" and now - keep.age or nil
  if excess <= 0 and not oldest_ms then return end
  if not turns.isHome(target, target.base .. ":toril:turning", list, now) then return end
  local removed = {}
  for i = 1, #dead_letters.ids + MORE_REMOVED do
    local letter = dead_letters.prefix .. (redis.call("LINDEX", list, -1) or "")
    local known = hashes.tryRead(letter, "x.letter", "timestamp")
    local at = known.err and 0 or tonumber(known.timestamp) or now
    local is_old = oldest_ms and at < oldest_ms
    if not (known["x.letter"] or known.err) or i > excess and not is_old then break end
    redis.call("RPOP", list)
    removed[i] = letter
  end
  if #removed == 0 then return end
  jobs.deleteAll(removed)
  redis.call("HINCRBY", target.meta, "x.purged", clock.digits(#removed))
  journal.emit(target, "cleaned", "count", clock.digits(#removed))
end

--- Put what was written into the target's list, all at once, and wake a worker there.
function burials.arrive(dead_letters, now)
  if #dead_letters.ids == 0 then return end
  local target, gate = dead_letters.queue, dead_letters.gate
  local list = gates.readyList(target, gate)
  local length = redis.call("LPUSH", list, unpack(dead_letters.ids))
  if dead_letters.keep then retainLetters(dead_letters, list, length, now) end
  if not gate.holds_letters then redis.call("HSET", target.meta, "toril.deadLetters", 1) end
  journal.trim(target, gate)
  places.wake(target, gate)
end

--- All letters of this call are written: their jobs are removed, and counted.
function burials.close(queue, dead_letters, now)
  if not dead_letters or #dead_letters.ids == 0 then return end
  if dead_letters.has_more then
    jobs.deleteAll(dead_letters.moved)
  elseif #dead_letters.moved > 0 then
    redis.call("UNLINK", unpack(dead_letters.moved))
  end
  if not dead_letters.away then burials.arrive(dead_letters, now) end
  redis.call("HINCRBY", queue.meta, "x.deadLettered", clock.digits(#dead_letters.ids))
end

local function drawLetterId(dead_letters)
  if dead_letters.drawn == 0 then drawLetterIds(dead_letters, 1, {}) end
  dead_letters.drawn = dead_letters.drawn - 1
  local id = string.format("%d", dead_letters.last - dead_letters.drawn)
  dead_letters.ids[#dead_letters.ids + 1] = id
  return id
end

--- A whole number from a hash, as JSON; 0 if it is damaged.
local function wholeNumber(text)
  return text and string.match(text, "^[1-9]%d*$") or "0"
end

--- What scripts need to know about a letter later, as they cannot decode its data. It is the same for
--- all in the same trouble whose metadata have `size` bytes; the job's own members come first in these.
local function writeNote(trouble, size)
  trouble.noted_size, trouble.noted = size, '{"size":' .. clock.digits(size) .. trouble.note .. "}"
  return trouble.noted
end

--- What few letters have: data that are not an object or not JSON, a group, earlier lives.
local function writeRest(more, raw_data, is_wrapped, group, hash)
  local function also(name, value)
    if value then more[#more + 1], more[#more + 2] = name, value end
  end
  also("x.data", raw_data)
  also("x.wrapped", not raw_data and is_wrapped and "1")
  also("x.member", group)
  also("x.replays", hash["x.replays"])
  also("x.history", hash["x.history"])
  also("x.original", hash["x.original"])
  return more
end

--- How often a job came back from the dead letters, when, and its original data.
local function earlierLives(replay_count, history, original)
  if not replay_count then return "" end
  return ',"replays":' .. wholeNumber(replay_count) .. ',"history":[' .. (history or "") .. "]"
    .. (original and ',"originalData":' .. original or "")
end

local MOST_LOGS = 1000

--- Leave a letter for a queue in another slot, with the last lines of its log. Unless the job is kept,
--- it is then in transit.
local function sendLetter(dead_letters, job, ended, letter)
  if dead_letters.has_more then letter.logs = redis.call("LRANGE", job .. ":logs", -MOST_LOGS, -1) end -- bounded: MOST_LOGS
  local id = parcels.send(dead_letters.away, ended.id .. ":" .. letter.stamp, { verb = "bury",
    letter = letter, keep = dead_letters.keep }, not ended.trouble.stacktrace and ended.id or nil)
  dead_letters.ids[#dead_letters.ids + 1] = id
  return id
end

--- Write a letter in this slot, where its job is or was.
local function writeLetter(dead_letters, id, letter)
  jobs.write(dead_letters.prefix .. id, { name = letter.name, more = letter.more }, letter.text,
    '{"attempts":0}', letter.stamp, "0")
  journal.emit(dead_letters.queue, "waiting", "jobId", id)
end

--- A letter that was sent from another slot; burials.arrive puts it into the list. Nothing is written if
--- it is already here.
function burials.receive(dead_letters, id, letter)
  local key = dead_letters.prefix .. id
  if redis.call("EXISTS", key) == 1 then return end
  writeLetter(dead_letters, id, letter)
  if letter.logs and #letter.logs > 0 then redis.call("RPUSH", key .. ":logs", unpack(letter.logs)) end
  dead_letters.ids[#dead_letters.ids + 1] = id
end

--- `ended` = { id, trouble, is_raw (the data are not JSON) }, `known` is what jobs.readEnding returned.
--- Returns the id among the dead letters.
function burials.bury(queue, dead_letters, ended, known)
  local job, trouble = queue.base .. ":" .. ended.id, ended.trouble
  local hash = hashes.read(job, "data", "timestamp", "x.replays", "x.history", "x.original")
  local data = hash.data or "{}"
  local metadata = '{"originalJobId":' .. texts.quote(ended.id) .. ',"originalTimestamp":'
    .. wholeNumber(hash.timestamp) .. ',"deadLetteredAt":' .. dead_letters.stamp
    .. earlierLives(hash["x.replays"], hash["x.history"], hash["x.original"]) .. trouble.metadata .. "}"
  local text, is_wrapped = texts.splice(ended.is_raw and "null" or data, metadata)
  local more = writeRest({ "x.letter", writeNote(trouble, #metadata) }, ended.is_raw and data,
    is_wrapped, known.group, hash)
  local letter = { name = known.name, more = more, text = text, stamp = dead_letters.stamp }
  if dead_letters.away then return sendLetter(dead_letters, job, ended, letter) end
  local id = drawLetterId(dead_letters)
  writeLetter(dead_letters, id, letter)
  if dead_letters.has_more and redis.call("EXISTS", job .. ":logs") == 1 then
    redis.call(trouble.stacktrace and "COPY" or "RENAME", job .. ":logs",
      dead_letters.prefix .. id .. ":logs")
  end
  return id
end

--- A cheaper jobs.finish for most jobs that go to the dead letters: those without ties to others,
--- with no keys other than their hash, and with data that are a plain object.
--- Returns its id there, or a refusal; for any other job it changes nothing and returns nothing.
---
--- In a storm of failures every call in a script counts, and every string it builds. So what cannot
--- have changed since the worker took the job is not read again, the letter is built in one piece,
--- and all of this is written out here.
function burials.buryPlainly(queue, dead_letters, batch, i, outcome, trouble, points, now)
  if outcome.is_special or dead_letters.has_more or dead_letters.away then return nil end
  local call, job = redis.call, batch.jobs[i]
  local hash = hashes.read(job, "data", "parentKey")
  local data = hash.data
  if not data or hash.parentKey or string.sub(data, -1) ~= "}" then return nil end
  local brace, quote = string.byte(data, 1, 2)
  if brace ~= 123 or quote ~= 34 then return nil end
  local refusal = batches.leave(queue, batch, i, outcome)
  if refusal then return refusal end

  local id, reason, moved = outcome.id, trouble.reason, dead_letters.moved
  local text = string.sub(data, 1, -2) .. ',"_dlqMeta":{"originalJobId":"' .. id
    .. '","originalTimestamp":' .. outcome.at .. trouble.plain_end
  local size = #text - #data - 12
  if size ~= trouble.noted_size then writeNote(trouble, size) end
  local letter_id = drawLetterId(dead_letters)
  jobs.write(dead_letters.prefix .. letter_id, { name = trouble.name,
    more = { "x.letter", trouble.noted } }, text, '{"attempts":0}', dead_letters.stamp, "0")
  moved[#moved + 1] = job

  local events = queue.events
  call("XADD", dead_letters.queue.events, "*", "event", "waiting", "jobId", letter_id)
  call("XADD", events, "*", "event", "failed", "jobId", id, "failedReason", reason, "prev", "active")
  if trouble.made >= trouble.attempts then
    call("XADD", events, "*", "event", "retries-exhausted", "jobId", id,
      "attemptsMade", clock.digits(trouble.made))
  end
  call("XADD", events, "*", "event", "deadLettered", "jobId", id, "queue", dead_letters.source,
    "deadLetterQueue", dead_letters.name, "failedReason", reason, "deadLetterJobId", letter_id)
  if points then
    metrics.count(queue, "failed", points, now)
    metrics.count(queue, "deadLettered", points, now)
  end
  return letter_id
end
