--[[
  drainLane: remove the jobs that wait in one lane, a slice at a time, the first ones first.

  A job that runs stays, and so do the pending iterations of schedulers.

  Keys      base, waiting_children, meta, marker, paused, events, repeat, lanes_waiting,
            lanes_aside
  Args      lane str, place str ("waiting" or "delayed"), slice int, skip int (how many earlier calls kept),
            flight str?, request str?, is_late bool? (rooms/requests.lua)
  Returns   how many were examined, how many were removed
  Emits     removed
  Keeps     I1, I4
  Flags     allow-oom
  Cost      O(slice + skip)
]]
local function drainSlice(queue, a)
  local lanes_waiting, lanes_aside = queue["lanes:waiting"], queue["lanes:aside"]
  local gate = gates.read(queue)
  local lane = laneNames.write(a.lane)
  local found_members = redis.call("ZRANGEBYLEX", a.place == "delayed" and lanes_aside or lanes_waiting,
    "[" .. lane .. " ", "(" .. lane .. "!", "LIMIT", a.skip, a.slice)
  local removed = 0
  for _, member in ipairs(found_members) do
    local id = laneNames.idIn(member)
    if not schedules.isNextIteration(queue, id) then
      if jobs.removeAny(queue, id) then
        journal.emitTrimmed(queue, gate, "removed", "jobId", id,
          "prev", a.place == "delayed" and "delayed" or "wait")
      end
      lanes.takeFromAside(queue, member)
      lanes.removeFromWaiting(queue, lane, member)
      lanes.dropKept(queue, id)
      removed = removed + 1
    end
  end
  local turn, ids = lanes.holders(queue, lane)
  lanes.place(queue, lane, #ids, turn)
  return { #found_members, removed }
end

function calls.drainLane(KEYS, a, ARGV)
  local base, waiting_children, meta, marker, paused, events, repeat_, lanes_waiting, lanes_aside = unpack(KEYS)
  local queue = queues.at(base)
  return requests.makeOnce(queue, a, clock.now(), function() return drainSlice(queue, a) end)
end
