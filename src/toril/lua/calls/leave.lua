--[[
  leave: a worker shuts down. Forget its last calls, and wake another worker if there is work: the
  connection that is being closed may have popped the marker.

  Keys      base, wait, active, prioritized, marker, meta, paused, replies
  Args      flights list of str
  Returns   0
  Flags     allow-oom
  Cost      O(flights)
]]
function calls.leave(KEYS, a, ARGV)
  local base, wait, active, prioritized, marker, meta, paused, replies = unpack(KEYS)
  local queue = queues.at(base)
  redis.call("HDEL", replies, unpack(a.flights))
  if redis.call("EXISTS", wait, prioritized, queue["lanes:ready"]) > 0 then
    places.wake(queue, gates.read(queue))
  end
  return 0
end
