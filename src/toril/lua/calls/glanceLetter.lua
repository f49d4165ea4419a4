--[[
  glanceLetter: what a list shows of a dead letter, without its payload.

  The metadata are at the end of its data, of which this returns as much as holds them. Toril's note says
  how much that is; if another program wrote the letter, their name is looked for.

  Keys      job
  Args      fields [str], most int (bytes at most)
  Returns   the values of the fields, how many bytes its data have, and their end: "" if there are no
            metadata in them, one byte if these are not at the end; nothing if there is no such job
  Flags     no-writes
  Cost      O(bytes of its data)
]]
local NAME = '"_dlqMeta"'

--- How many bytes at the end of the data hold the metadata.
local function sizeOfEnd(note_text, data, most)
  local note = letters.readNote(note_text)
  if note and tonumber(note.size) then return math.max(tonumber(note.size) + #NAME + 2, 1) end
  local place = string.find(data, NAME, math.max(#data - most + 1, 1), true)
  if place then return #data - place + 1 end
  -- What it is looked for by begins with a character that is rare in JSON: this is fast.
  return string.find(data, string.sub(NAME, 2), 1, true) and 1 or 0
end

function calls.glanceLetter(KEYS, a, ARGV)
  local job = unpack(KEYS)
  local known = hashes.tryRead(job, "name", "data", "x.letter")
  if not known.name then return {} end
  local data = known.data or ""
  local size = math.min(sizeOfEnd(known["x.letter"], data, a.most), #data, a.most)
  return { redis.call("HMGET", job, unpack(a.fields)), #data, string.sub(data, #data - size + 1) }
end
