local TYPES = { source = "string", why = "string", fp = "string", opts = "string", lane = "string",
  priority = "number", delay = "number" }

--- What was noted about a dead letter when it was written: { size (of the metadata), source, why, fp,
--- opts (unless they are the default), key (its idempotency key, if it chose one; false if it never
--- ran), priority, delay, lane, order_ms (the last four if it has them) }. Nothing if another program
--- wrote it, or changed it so that it is of no use. One without a fingerprint has an empty one, as in its
--- metadata.
function letters.readNote(text)
  if not text then return nil end
  local is_read, note = pcall(cjson.decode, text)
  if not (is_read and type(note) == "table" and note.source) then return nil end
  for name, kind in pairs(TYPES) do
    if note[name] ~= nil and type(note[name]) ~= kind then return nil end
  end
  if note.key and type(note.key) ~= "string" then return nil end
  note.why, note.fp = note.why or "", note.fp or ""
  return note
end

--- Walking through the dead letters of a queue, the oldest first, slice by slice.
---
--- Letters wait in a list, or in a sorted set if somebody gave them a priority or a delay. A list is
--- walked from its tail, a set from its beginning. `offset` letters there were examined and left;
--- `anchor` is the last of them: it marks the position if somebody takes letters out meanwhile.

local WINDOW = 1000

function letters.isList(place)
  return place == "wait" or place == "paused"
end

local function lettersIn(queue, place)
  return redis.call(letters.isList(place) and "LLEN" or "ZCARD", queue[place])
end

function letters.count(queue)
  return lettersIn(queue, "wait") + lettersIn(queue, "paused") + lettersIn(queue, "prioritized")
    + lettersIn(queue, "delayed")
end

--- The next place after this one that holds letters; nothing if there is none.
function letters.nextPlace(queue, place)
  local is_behind = false
  for _, other in ipairs({ "wait", "paused", "prioritized", "delayed" }) do
    if is_behind and lettersIn(queue, other) > 0 then return other end
    is_behind = is_behind or other == place
  end
  return nil
end

--- Up to `count` ids after the first `offset`, in the order of the walk.
function letters.idsFrom(queue, place, offset, count)
  if not letters.isList(place) then
    return redis.call("ZRANGE", queue[place], offset, offset + count - 1)
  end
  local ids = redis.call("LRANGE", queue[place], -(offset + count), -(offset + 1))
  for i = 1, math.floor(#ids / 2) do
    ids[i], ids[#ids + 1 - i] = ids[#ids + 1 - i], ids[i]
  end
  return ids
end

--- How many bytes a script would have to move or free with this letter.
local function sizeOf(letter)
  if letter.is_damaged then return 0 end
  local key = letter.key
  return redis.call("HSTRLEN", key, "data") + redis.call("HSTRLEN", key, "x.data")
    + redis.call("HSTRLEN", key, "x.original")
end

--- Counts the bytes of one slice: is there room for this letter? The first one always has room.
function letters.byteBudget(most)
  local spent = 0
  return function(letter)
    local size = sizeOf(letter)
    if spent > 0 and spent + size > most then return false end
    spent = spent + size
    return true
  end
end

--- A letter `is_damaged` if its key does not hold a hash: a replay leaves it where it is.
function letters.read(queue, id)
  local key = queue.base .. ":" .. id
  local hash = hashes.tryRead(key, "name", "timestamp", "x.letter")
  if hash.err then return { id = id, key = key, at = 0, is_damaged = true } end
  return { id = id, key = key, name = hash.name, at = tonumber(hash.timestamp) or 0, text = hash["x.letter"] }
end

--- Its note, read when it is needed; nothing if another program wrote the letter.
function letters.noteOf(letter)
  if letter.text and not letter.note then
    letter.note = letters.readNote(letter.text)
  end
  return letter.note
end

--- Does a letter's job belong to a group that it cannot come back to: one that is over, is being undone
--- or does not wait for it? A group in another slot decides when the letter arrives there.
function letters.isBarred(membership)
  if not membership or parcels.isAway(membership) then return false end
  local is_group, state = pcall(groups.stateOf, membership)
  return not is_group or state ~= "ACTIVE"
end

--- Is the group of a letter's job in another slot? The client asks it first.
function letters.isAway(letter)
  local membership = memory.outbox and redis.call("HGET", letter.key, "x.member")
  return membership and parcels.isAway(membership)
end

--- Why a replay leaves it alone: "replays" if it came back too often, "group" if its group does not take
--- it; nothing if it may go.
function letters.whyHeld(letter, max_replays, is_forced)
  local known = hashes.read(letter.key, "x.replays", "x.member")
  if max_replays and (tonumber(known["x.replays"]) or 0) >= max_replays then return "replays" end
  return not is_forced and letters.isBarred(known["x.member"]) and "group" or nil
end

--- Does a letter pass the filter? "take", "leave", or "ask" if only its data can tell: it was not
--- written by Toril.
function letters.judge(letter, filter, not_after)
  if letter.at > not_after then return "leave" end
  if filter.since and letter.at < filter.since then return "leave" end
  if filter.before and letter.at >= filter.before then return "leave" end
  if filter.name and letter.name ~= filter.name then return "leave" end
  if not (filter.failed_reason or filter.fingerprint or filter.source_queue) then return "take" end
  local note = letters.noteOf(letter)
  if not note then return "ask" end
  if filter.fingerprint and note.fp ~= filter.fingerprint then return "leave" end
  if filter.source_queue and note.source ~= filter.source_queue then return "leave" end
  if filter.failed_reason and not string.find(note.why, filter.failed_reason, 1, true) then
    return "leave"
  end
  return "take"
end

--- Where to continue: `offset` if the anchor is there, or where it is now, or the beginning. It can only
--- have moved closer to the tail; if it is farther away, another walk has brought it round.
function letters.findPlace(queue, place, offset, anchor)
  if offset == 0 or not anchor then return offset end
  local list = queue[place]
  if not letters.isList(place) then
    local rank = redis.call("ZRANK", list, anchor)
    return rank and rank + 1 or 0
  end
  if redis.call("LINDEX", list, -offset) == anchor then return offset end
  local ids = redis.call("LRANGE", list, -offset, -math.max(offset - WINDOW, 1))
  for i, id in ipairs(ids) do
    if id == anchor then return offset + 1 - i end
  end
  return 0
end

--- Count a letter under its fingerprint: how many, since when, until when, and the newest as an
--- example.
function letters.survey(by_fingerprint, letter)
  local group = by_fingerprint[letter.note.fp]
  if not group then
    group = { count = 0, first = letter.at, last = letter.at, example = letter.id }
    by_fingerprint[letter.note.fp] = group
  end
  group.count = group.count + 1
  group.first = math.min(group.first, letter.at)
  if letter.at >= group.last then
    group.last, group.example = letter.at, letter.id
  end
end
