--- @include "includes/lanes"
local SORTED_PLACES = { "completed", "waiting_children", "delayed", "failed", "prioritized" }
local LISTED_PLACES = { "wait", "paused", "active" }

--- Take a job out of wherever it is; returns the place under its name on the wire. Finding it in a
--- list takes time in proportion to the list, so the lists are looked at last.
local function takeOut(queue, id)
  for _, place in ipairs(SORTED_PLACES) do
    if redis.call("ZREM", queue[place], id) == 1 then
      return (string.gsub(place, "_", "-"))
    end
  end
  local lane = redis.call("HGET", queue.base .. ":" .. id, "x.lane")
  local place = lane and leaveLane(queue, lane, id)
  if place then return place end
  for _, place in ipairs(LISTED_PLACES) do
    if redis.call("LREM", queue[place], 1, id) == 1 then
      if place == "active" then redis.call("SREM", queue.stalled, id) end
      return place
    end
  end
  return "unknown"
end
