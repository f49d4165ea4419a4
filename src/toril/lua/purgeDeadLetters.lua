#!lua flags=allow-oom
--[[
  purgeDeadLetters: remove one slice of the dead letters for good.

  Keys      base, wait, paused, meta, events, sweep, turning
  Args      list str ("wait" or "paused"), is_last bool? (no list follows), offset int,
            anchor str?, turn str?, behind int (how many may be left at the tail), examine int,
            limit int, not_after int? (now when the walk begins),
            filter {name, failed_reason, fingerprint, source_queue, since, before},
            accepted {id -> true}? (the client has looked at these),
            run str, step int, done int (in earlier slices)
  Returns   as JSON {is_done, offset, anchor, turn, count, asked, examined, length, not_after}
  Emits     cleaned, waiting (of a parent that waited for a removed job)
  Keeps     I1
  Cost      O(examine + behind)
]]
local base, wait, paused, meta, events, sweep, turning = unpack(KEYS)
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

local function visit(letter)
  local answer = judge(letter, a.filter, not_after)
  if answer == "ask" and a.accepted and a.accepted[letter.id] then answer = "take" end
  if answer ~= "take" then return answer end
  if noteOf(letter) then
    purged[#purged + 1] = letter.key
  else
    removeJob(queue, letter.id) -- not one of ours: it may have a parent, a group and so on
  end
  return "take"
end

return walkLetters(queue, sweep, turning, a, now, visit, function(result)
  deleteJobs(purged)
  result.not_after = not_after
  if result.count > 0 then
    redis.call("HINCRBY", meta, "x.purged", result.count)
    emitTrimmed(queue, gate, "cleaned", "count", result.count)
  end
end)
