--[[
  pause: let nobody take jobs from the queue; running jobs continue.

  Unless BullMQ 6 opened the queue last and BullMQ 5 was never seen there, the waiting jobs move to
  `paused`, because BullMQ 5's resume renames that list over `wait`. Nothing is ever renamed over an existing list: two lists are merged, in slices.

  Keys      base, wait, paused, marker, meta, events
  Args      slice int
  Returns   1 if there is more to move, else 0
  Emits     paused
  Keeps     I1
  Flags     allow-oom
  Cost      O(slice)
]]
function calls.pause(KEYS, a, ARGV)
  local base, wait, paused, marker, meta, events = unpack(KEYS)
  local queue = queues.at(base)
  redis.call("HSET", meta, "paused", 1)
  redis.call("DEL", marker)
  local gate = gates.read(queue)
  if (gate.was_version_5 or not gate.stays_in_wait) and redis.call("EXISTS", wait) == 1 then
    if redis.call("EXISTS", paused) == 0 then
      redis.call("RENAME", wait, paused)
    else
      redis.call("LPUSH", paused, unpack(redis.call("RPOP", wait, a.slice)))
      if redis.call("EXISTS", wait) == 1 then return 1 end
    end
  end
  journal.emit(queue, "paused")
  return 0
end
