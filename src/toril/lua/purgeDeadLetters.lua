#!lua flags=allow-oom
--[[
  purgeDeadLetters: remove one slice of the dead letters for good.

  Keys      base, wait, paused, meta, events, sweep
  Args      list str ("wait" or "paused"), is_last bool? (no list follows), offset int,
            anchor str?, examine int, limit int,
            not_after int? (now when the walk begins), filter {name, failed_reason, fingerprint,
            source_queue, since, before}, accepted {id -> true}? (the client has looked at these),
            run str, step int, done int (in earlier slices)
  Returns   as JSON {is_done, offset, anchor, count, asked, examined, length, not_after}
  Emits     cleaned, waiting (of a parent that waited for a removed job)
  Keeps     I1
  Cost      O(examine), and one pass through the list when letters are left behind
]]
local base, wait, paused, meta, events, sweep = unpack(KEYS)
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
--- @include "includes/letters"
--- @include "includes/letterSlices"

local recalled = recallSlice(sweep, a)
if recalled then return recalled end

local queue = queueAt(base)
local gate = readGate(queue)
local not_after = a.not_after or clock()

local result = walkLetters(queue, queue[a.list], a, function(letter)
  local answer = judge(letter, a.filter, not_after)
  if answer == "ask" and a.accepted and a.accepted[letter.id] then answer = "take" end
  if answer ~= "take" then return answer end
  if letter.source then
    deleteJob(base .. ":" .. letter.id)
  else
    removeJob(queue, letter.id) -- not one of ours: it may have a parent, a group and so on
  end
  return "take"
end)
result.not_after = not_after
if result.count > 0 then
  redis.call("HINCRBY", meta, "x.purged", result.count)
  emitTrimmed(queue, gate, "cleaned", "count", result.count)
end
return rememberSlice(sweep, a, result)
