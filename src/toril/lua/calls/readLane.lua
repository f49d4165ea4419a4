--[[
  readLane: everything known about one lane.

  Keys      base, meta, lanes_waiting, lanes_aside, lanes_held, lanes_ready, lanes_later,
            lanes_settings
  Args      lane str
  Returns   how many jobs wait, the first of them ("" for none), the holders and since when, in
            turn, whether it is ready (0 or 1), until when a rate limit holds it back (0 for none),
            its settings as JSON ("" for none), how many may run at once by default, how many wait for
            a time
  Flags     no-writes
  Cost      O(log waiting jobs + holders)
]]
function calls.readLane(KEYS, a, ARGV)
  local base, meta, lanes_waiting, lanes_aside, lanes_held, lanes_ready, lanes_later, lanes_settings = unpack(KEYS)
  local queue = queues.at(base)
  local lane = laneNames.write(a.lane)
  local head = lanes.head(queue, lane)
  local _, ids = lanes.holders(queue, lane)
  local holders = {}
  for _, id in ipairs(ids) do
    holders[#holders + 1] = id
    holders[#holders + 1] = redis.call("HGET", base .. ":" .. id, "processedOn") or "0"
  end
  return {
    redis.call("ZLEXCOUNT", lanes_waiting, "[" .. lane .. " ", "(" .. lane .. "!"),
    head and laneNames.idIn(head) or "",
    holders,
    redis.call("ZSCORE", lanes_ready, lane) and 1 or 0,
    redis.call("ZSCORE", lanes_later, lane) or "0",
    redis.call("HGET", lanes_settings, lane) or "",
    redis.call("HGET", meta, "toril.laneConcurrency") or "1",
    redis.call("ZLEXCOUNT", lanes_aside, "[" .. lane .. " ", "(" .. lane .. "!")
  }
end
