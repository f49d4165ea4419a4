--[[
  glanceLanes: a summary of some lanes that have jobs, those that have had jobs longest first.

  Keys      base, meta, lanes_index, lanes_waiting, lanes_held, lanes_settings
  Args      most int
  Returns   for each: lane as written in keys, how many jobs wait, the first of them, the jobs that hold
            it, its settings as JSON; "" for what is missing
  Flags     no-writes
  Cost      O(most * log waiting jobs)
]]
function calls.glanceLanes(KEYS, a, ARGV)
  local base, meta, lanes_index, lanes_waiting, lanes_held, lanes_settings = unpack(KEYS)
  local queue = queues.at(base)
  local found = {}
  for _, lane in ipairs(redis.call("ZRANGE", lanes_index, 0, a.most - 1)) do
    local head = lanes.head(queue, lane)
    local _, holders = lanes.holders(queue, lane)
    found[#found + 1] = {
      lane,
      redis.call("ZLEXCOUNT", lanes_waiting, "[" .. lane .. " ", "(" .. lane .. "!"),
      head and laneNames.idIn(head) or "",
      table.concat(holders, "\n"),
      redis.call("HGET", lanes_settings, lane) or ""
    }
  end
  return found
end
