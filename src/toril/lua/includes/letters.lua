--- @lazily
--- Walking through the dead letters of a queue, the oldest first, slice by slice.
---
--- The list is walked from its tail. `offset` letters there were looked at and left; `anchor` is the
--- last of them, by which the place is found again when somebody takes letters out meanwhile.
--- @include "includes/groups"
--- @include "includes/letterNote"

local WINDOW = 1000

local function readLetter(queue, id)
  local key = queue.base .. ":" .. id
  local hash = redis.call("HMGET", key, "name", "timestamp", "x.letter")
  return { id = id, key = key, name = hash[1], at = tonumber(hash[2]) or 0, text = hash[3] }
end

--- What was noted of it, read when it is needed; nothing if another program wrote it.
local function noteOf(letter)
  if letter.text and not letter.note then
    letter.note = readNote(letter.text)
  end
  return letter.note
end

--- Is it to be left alone by a replay: did it come back too often, or is its group over?
local function isHeld(letter, max_replays, is_forced)
  local known = redis.call("HMGET", letter.key, "x.replays", "x.member")
  if max_replays and (tonumber(known[1]) or 0) >= max_replays then return true end
  return known[2] and not is_forced and groupStateOf(known[2]) ~= "ACTIVE"
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
local function findPlace(list, offset, anchor)
  if offset == 0 or not anchor then return offset end
  if redis.call("LINDEX", list, -offset) == anchor then return offset end
  local ids = redis.call("LRANGE", list, -offset, -math.max(offset - WINDOW, 1))
  for i, id in ipairs(ids) do
    if id == anchor then return offset + 1 - i end
  end
  return 0
end
