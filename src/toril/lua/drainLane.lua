#!lua flags=allow-oom
--[[
  drainLane: remove the jobs that wait in one lane, a slice at a time, the first ones first.

  A job that runs stays, and so do the pending iterations of schedulers.

  Keys      base, waiting_children, meta, marker, paused, events, repeat, lanes_waiting,
            lanes_aside
  Args      lane str, place str ("waiting" or "delayed"), slice int, skip int (how many were kept by the calls before)
  Returns   how many were looked at, how many were removed
  Emits     removed
  Keeps     I1
  Cost      O(slice + skip)
]]
local base, waiting_children, meta, marker, paused, events, repeat_, lanes_waiting, lanes_aside = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/deleteJob"
--- @include "includes/parents"
--- @include "includes/deduplication"
--- @include "includes/removeJob"
--- @include "includes/scheduled"

local queue = queueAt(base)
local gate = readGate(queue)
local lane = laneName(a.lane)
local members = redis.call("ZRANGEBYLEX", a.place == "delayed" and lanes_aside or lanes_waiting,
  "[" .. lane .. " ", "(" .. lane .. "!", "LIMIT", a.skip, a.slice)
local removed = 0
for _, member in ipairs(members) do
  local id = idInLane(member)
  if not isNextIteration(queue, id) then
    if removeAnyJob(queue, id) then
      emitTrimmed(queue, gate, "removed", "jobId", id,
        "prev", a.place == "delayed" and "delayed" or "wait")
    end
    takeFromAside(queue, member)
    removeFromWaiting(queue, lane, member)
    dropKept(queue, id)
    removed = removed + 1
  end
end
local turn, ids = laneHolders(queue, lane)
placeLane(queue, lane, #ids, turn)
return { #members, removed }
