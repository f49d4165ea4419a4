--[[
  resume: let jobs be taken again.

  What is in `paused` goes back in front of what is in `wait`, since it came first. Nothing is ever
  renamed over an existing list: the shorter list is moved into the longer one, in slices, and the
  queue stays paused until both are one.

  Keys      base, wait, paused, active, prioritized, delayed, marker, meta, events
  Args      slice int
  Returns   1 if there is more to move, else 0
  Emits     resumed
  Keeps     I1
  Flags     allow-oom
  Cost      O(slice)
]]
function calls.resume(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, delayed, marker, meta, events = unpack(KEYS)
  local queue = queues.at(base)
  local waiting, held = redis.call("LLEN", wait), redis.call("LLEN", paused)
  if waiting > 0 and held > 0 then
    if waiting <= held then
      redis.call("LPUSH", paused, unpack(redis.call("RPOP", wait, a.slice)))
    else
      redis.call("RPUSH", wait, unpack(redis.call("LPOP", paused, a.slice)))
    end
    if math.min(waiting, held) > a.slice then return 1 end
  end
  if redis.call("EXISTS", wait) == 0 and redis.call("EXISTS", paused) == 1 then
    redis.call("RENAME", paused, wait)
  end

  redis.call("HDEL", meta, "paused")
  if redis.call("EXISTS", wait, prioritized, queue["lanes:ready"]) > 0 then
    places.wake(queue, gates.read(queue))
  else
    places.wakeWhenDue(queue)
    lanes.wakeWhenDue(queue)
  end
  journal.emit(queue, "resumed")
  return 0
end
