--- @lazily
--- Walking through the dead letters of a queue, the oldest first, slice by slice.
---
--- The list is walked from its tail. `offset` letters there were looked at and left; `anchor` is the
--- last of them, by which the place is found again when somebody takes letters out meanwhile.

local WINDOW = 1000

local function readLetter(queue, id)
  local hash = redis.call("HMGET", queue.base .. ":" .. id, "name", "timestamp", "x.source", "x.why",
    "x.fp", "x.replays", "x.member")
  return { id = id, name = hash[1], at = tonumber(hash[2]) or 0, source = hash[3], why = hash[4],
    fingerprint = hash[5], replays = tonumber(hash[6]) or 0, member = hash[7] }
end

--- Does a letter pass the filter? "take", "leave", or "ask" when only its data can tell: it was not
--- written by Toril.
local function judge(letter, filter, not_after)
  if letter.at > not_after then return "leave" end
  if filter.since and letter.at < filter.since then return "leave" end
  if filter.before and letter.at >= filter.before then return "leave" end
  if filter.name and letter.name ~= filter.name then return "leave" end
  if not letter.source then
    if filter.failed_reason or filter.fingerprint or filter.source_queue then return "ask" end
    return "take"
  end
  if filter.fingerprint and letter.fingerprint ~= filter.fingerprint then return "leave" end
  if filter.source_queue and letter.source ~= filter.source_queue then return "leave" end
  if filter.failed_reason and not string.find(letter.why, filter.failed_reason, 1, true) then
    return "leave"
  end
  return "take"
end

--- Where to go on: `offset` if the anchor is there, or where it is now, or the beginning.
local function findPlace(list, offset, anchor)
  if offset == 0 or not anchor then return offset end
  if redis.call("LINDEX", list, -offset) == anchor then return offset end
  local nearest = math.max(offset - WINDOW, 1)
  local ids = redis.call("LRANGE", list, -(offset + WINDOW), -nearest)
  for i, id in ipairs(ids) do
    if id == anchor then return nearest + #ids - i end
  end
  return 0
end
