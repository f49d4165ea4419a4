#!lua flags=allow-oom
--[[
  purgeDeadLetters: remove one slice of the dead letters for good.

  Keys      base, wait, paused, prioritized, delayed, meta, events, sweep (this run), latest (run with
            this filter), turning
  Args      place str ("wait", "paused", "prioritized" or "delayed"), offset int, anchor str?,
            turn str?, behind int (how many may be left at the tail), examine int, limit int,
            bytes int (of payload in one slice), not_after int? (now when the walk begins),
            filter {name, failed_reason, fingerprint, source_queue, since, before},
            is_sure bool? (what waits here are dead letters; else only those go that have a note),
            accepted {id -> true}? (the client has looked at these),
            run str, step int, done int (in earlier slices)
  Returns   as JSON {is_done, next (the place to go on with), offset, anchor, turn, count, asked,
            examined, length, not_after}
  Emits     cleaned, waiting (of a parent that waited for a removed job)
  Keeps     I1
  Cost      O(examine + behind)
]]
local base, wait, paused, prioritized, delayed, meta, events, sweep, latest, turning = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/deleteJob"
--- @include "includes/parents"
--- @include "includes/deduplication"
--- @include "includes/removeJob"
--- @include "includes/letterSlices"

local queue = queueAt(base)
local gate = readGate(queue)
local now = clock()
local not_after = a.not_after or now
local purged = {}
local hasRoom = byteBudget(a.bytes)

local function visit(letter)
  local answer = judge(letter, a.filter, not_after)
  if answer == "ask" and a.accepted and a.accepted[letter.id] then answer = "take" end
  if letter.is_damaged and answer == "ask" then return "leave" end
  if answer ~= "take" then return answer end
  if not (a.is_sure or gate.holds_letters or noteOf(letter)) then return "leave" end
  if not hasRoom(letter) then return "stop" end
  if noteOf(letter) or letter.is_damaged then
    purged[#purged + 1] = letter.key
  else
    removeJob(queue, letter.id) -- not one of ours: it may have a parent, a group and so on
  end
  return "take"
end

return walkLetters(queue, sweep, latest, turning, a, now, visit, function(result)
  deleteJobs(purged)
  result.not_after = not_after
  if result.count > 0 then
    redis.call("HINCRBY", meta, "x.purged", result.count)
    emitTrimmed(queue, gate, "cleaned", "count", result.count)
  end
end)
