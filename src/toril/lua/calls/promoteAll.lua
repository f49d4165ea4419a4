--[[
  promoteAll: let delayed jobs run now, a slice at a time, the earliest due first.

  Keys      base, wait, paused, active, prioritized, pc, delayed, marker, meta, events
  Args      slice int, flight str?, request str?, is_late bool? (rooms/requests.lua)
  Returns   how many were let in, how many are left
  Emits     waiting
  Keeps     I1, I4
  Flags     allow-oom
  Cost      O(slice)
]]
local function promoteSlice(queue, a)
  local base, delayed = queue.base, queue.delayed
  local gate = gates.read(queue)
  local ids = redis.call("ZRANGE", delayed, 0, a.slice - 1)
  local count = 0
  for _, id in ipairs(ids) do
    if places.promote(queue, gate, id) then count = count + 1 end
  end
  if #ids > 0 then redis.call("ZREM", delayed, unpack(ids)) end
  local room = a.slice - #ids
  local lane_members = room > 0 and redis.call("ZRANGE", queue["lanes:delayed"], 0, room - 1) or {}
  if #lane_members > 0 then lanes.takeFromAside(queue, unpack(lane_members)) end
  for _, member in ipairs(lane_members) do
    local _, mark, lane, id = laneNames.readMember(member)
    if id ~= "" then
      lanes.promote(queue, gate, lane, id, mark)
      places.noteDue(base .. ":" .. id)
      count = count + 1
    end
  end
  if #ids + #lane_members > 0 then places.wake(queue, gate) end
  return { count, redis.call("ZCARD", delayed) + redis.call("ZCARD", queue["lanes:delayed"]) }
end

function calls.promoteAll(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, pc, delayed, marker, meta, events = unpack(KEYS)
  local queue = queues.at(base)
  return requests.makeOnce(queue, a, clock.now(), function() return promoteSlice(queue, a) end)
end
