--- @lazily
--- Walking through the dead letters of a queue, the oldest first, slice by slice.
---
--- Letters wait in a list, or in a sorted set if somebody gave them a priority or a delay. A list is
--- walked from its tail, a set from its beginning. `offset` letters there were looked at and left;
--- `anchor` is the last of them, by which it is found again when somebody takes letters out meanwhile.
--- @include "includes/groups"
--- @include "includes/letterNote"

local WINDOW = 1000

local function isList(place)
  return place == "wait" or place == "paused"
end

local function lettersIn(queue, place)
  return redis.call(isList(place) and "LLEN" or "ZCARD", queue[place])
end

local function countLetters(queue)
  return lettersIn(queue, "wait") + lettersIn(queue, "paused") + lettersIn(queue, "prioritized")
    + lettersIn(queue, "delayed")
end

--- The place after this one that holds letters; nothing when there is none.
local function nextPlace(queue, place)
  local is_behind = false
  for _, other in ipairs({ "wait", "paused", "prioritized", "delayed" }) do
    if is_behind and lettersIn(queue, other) > 0 then return other end
    is_behind = is_behind or other == place
  end
  return nil
end

--- Up to `count` ids behind the first `offset`, in the order of the walk.
local function idsFrom(queue, place, offset, count)
  if not isList(place) then
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
local function byteBudget(most)
  local spent = 0
  return function(letter)
    local size = sizeOf(letter)
    if spent > 0 and spent + size > most then return false end
    spent = spent + size
    return true
  end
end

--- A letter `is_damaged` if its key holds no hash: a replay leaves it where it is.
local function readLetter(queue, id)
  local key = queue.base .. ":" .. id
  local hash = redis.pcall("HMGET", key, "name", "timestamp", "x.letter")
  if hash.err then return { id = id, key = key, at = 0, is_damaged = true } end
  return { id = id, key = key, name = hash[1], at = tonumber(hash[2]) or 0, text = hash[3] }
end

--- What was noted of it, read when it is needed; nothing if another program wrote it.
local function noteOf(letter)
  if letter.text and not letter.note then
    letter.note = readNote(letter.text)
  end
  return letter.note
end

--- Why a replay leaves it alone: "replays" if it came back too often, "group" if its group is over or
--- being undone; nothing if it may go.
local function whyHeld(letter, max_replays, is_forced)
  local known = redis.call("HMGET", letter.key, "x.replays", "x.member")
  if max_replays and (tonumber(known[1]) or 0) >= max_replays then return "replays" end
  return known[2] and not is_forced and groupStateOf(known[2]) ~= "ACTIVE" and "group" or nil
end

--- Does a letter pass the filter? "take", "leave", or "ask" when only its data can tell: it was not
--- written by Toril.
local function judge(letter, filter, not_after)
  if letter.at > not_after then return "leave" end
  if filter.since and letter.at < filter.since then return "leave" end
  if filter.before and letter.at >= filter.before then return "leave" end
  if filter.name and letter.name ~= filter.name then return "leave" end
  if not (filter.failed_reason or filter.fingerprint or filter.source_queue) then return "take" end
  local note = noteOf(letter)
  if not note then return "ask" end
  if filter.fingerprint and note.fp ~= filter.fingerprint then return "leave" end
  if filter.source_queue and note.source ~= filter.source_queue then return "leave" end
  if filter.failed_reason and not string.find(note.why, filter.failed_reason, 1, true) then
    return "leave"
  end
  return "take"
end

--- Where to go on: `offset` if the anchor is there, or where it is now, or the beginning. It can only
--- have come nearer to the tail; farther away is an anchor that another walk has brought round.
local function findPlace(queue, place, offset, anchor)
  if offset == 0 or not anchor then return offset end
  local list = queue[place]
  if not isList(place) then
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
