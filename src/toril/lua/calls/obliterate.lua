--[[
  obliterate: remove every job of a paused queue, a slice at a time. `eraseKeys` does the rest.

  The groups that the queue owns are forgotten first, without being undone: a caller who removes a
  queue wants it gone. Groups that other queues own lose their members here, and undo the rest.

  Keys      base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed,
            meta, lanes_waiting, lanes_delayed, parcels
  Args      slice int, force bool (also remove jobs that workers hold)
  Returns   how many jobs were removed, and whether there is more to do (0 or 1)
  Refuses   NOT_PAUSED          the queue is not paused   NotPausedError
            LOCKED              jobs are active   JobLockedError
            PARCELS_LEFT        parcels are not delivered, and it is not forced   NotDeliveredError
  Flags     allow-oom
  Cost      O(slice)
]]
function calls.obliterate(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed, meta, lanes_waiting, lanes_delayed, parcels_ = unpack(KEYS)
  local queue = queues.at(base)
  if redis.call("HEXISTS", meta, "paused") == 0 then return refusals.NOT_PAUSED end
  if not a.force then
    if redis.call("EXISTS", active) == 1 then return refusals.LOCKED end
    if redis.call("EXISTS", parcels_) == 1 then return refusals.PARCELS_LEFT end
  end

  local forgotten = redis.call("ZRANGE", base .. ":groups", 0, a.slice - 1)
  for _, group_id in ipairs(forgotten) do
    groups.delete(base, group_id)
  end
  if #forgotten > 0 then return { 0, 1 } end

  local ids, was_active = {}, {}
  for _, place in ipairs({ active, wait, paused }) do
    local room = a.slice - #ids
    local popped = room > 0 and redis.call("RPOP", place, room) or {}
    for _, id in ipairs(popped) do
      ids[#ids + 1] = id
      if place == active then
        was_active[id] = true
        redis.call("DEL", base .. ":" .. id .. ":lock")
      end
    end
  end
  local is_lanes = { [lanes_waiting] = true, [lanes_delayed] = true }
  for _, place in ipairs({ waiting_children, delayed, prioritized, completed, failed, lanes_waiting,
      lanes_delayed }) do
    local room = a.slice - #ids
    if room > 0 then
      local popped = redis.call("ZPOPMIN", place, room)
      for i = 1, #popped, 2 do
        ids[#ids + 1] = is_lanes[place] and laneNames.idIn(popped[i]) or popped[i]
      end
    end
  end
  for _, id in ipairs(ids) do
    jobs.removeAny(queue, id, { is_hard = true, was_active = was_active[id] })
  end
  return { #ids, #ids < a.slice and 0 or 1 }
end
