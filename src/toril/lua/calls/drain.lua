--[[
  drain: remove jobs that wait in one place, a slice at a time.

  The pending iterations of schedulers stay. In a list they move to the back, so that a slice is
  always popped from the front; in a sorted set the caller skips them.

  Keys      base, wait, paused, prioritized, delayed, waiting_children, meta, repeat,
            lanes_waiting, lanes_delayed
  Args      place str ("wait", "paused", "prioritized", "delayed", "lanes:waiting" or
            "lanes:delayed"),
            slice int, skip int, flight str?, request str?, is_late bool? (rooms/requests.lua)
  Returns   how many were removed, how many were kept, how many are left in the place
  Keeps     I1, I4
  Flags     allow-oom
  Cost      O(slice)
]]
local function drainSlice(queue, a)
  local wait, paused = queue.wait, queue.paused
  local lanes_waiting, lanes_delayed = queue["lanes:waiting"], queue["lanes:delayed"]
  local place = queue[a.place]
  local is_list = place == wait or place == paused
  local ids
  if is_list then
    ids = redis.call("RPOP", place, a.slice) or {}
  else
    ids = redis.call("ZRANGE", place, a.skip, a.skip + a.slice - 1)
  end

  local is_lanes = place == lanes_waiting or place == lanes_delayed

  --- Clear away what is left of ids without a job.
  local function forgetMembers(found_members)
    if place == lanes_delayed then lanes.takeFromAside(queue, unpack(found_members)) end
    for _, member in ipairs(found_members) do
      lanes.dropKept(queue, laneNames.idIn(member))
    end
  end

  local gone, kept = {}, {}
  for _, member in ipairs(ids) do
    local to = schedules.isNextIteration(queue, is_lanes and laneNames.idIn(member) or member) and kept or gone
    to[#to + 1] = member
  end
  if is_list and #kept > 0 then redis.call("LPUSH", place, unpack(kept)) end
  for _, member in ipairs(gone) do
    jobs.removeAny(queue, is_lanes and laneNames.idIn(member) or member, { is_hard = true })
  end
  if not is_list and #gone > 0 then
    redis.call("ZREM", place, unpack(gone))
    if is_lanes then forgetMembers(gone) end
  end
  return { #gone, #kept, redis.call(is_list and "LLEN" or "ZCARD", place) }
end

function calls.drain(KEYS, a, ARGV)
  local base, wait, paused, prioritized, delayed, waiting_children, meta, repeat_, lanes_waiting, lanes_delayed = unpack(KEYS)
  local queue = queues.at(base)
  return requests.makeOnce(queue, a, clock.now(), function() return drainSlice(queue, a) end)
end
