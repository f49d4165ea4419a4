--[[
  publish: write a user-defined event into the queue's log.

  Keys      base, meta, events
  Args      name str, fields list of str (names and values in turn)
  Returns   the id of the event
  Cost      O(fields)
]]
function calls.publish(KEYS, a, ARGV)
  local base, meta, events = unpack(KEYS)
  local most = string.match(redis.call("HGET", meta, "opts.maxLenEvents") or "", "^%d+$") or "10000"
  return redis.call("XADD", events, "MAXLEN", "~", most, "*", "event", a.name, unpack(a.fields))
end
