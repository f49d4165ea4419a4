--[[
  dueGroups: which queues own groups that are due to be looked at, of those that a worker of this queue
  minds: its own, and those of groups with a time limit that have members here.

  Keys      base, open, deadlines (the queues that own groups with a limit, by the latest one)
  Args      most int (queues to look at)
  Returns   the bases of these queues, and in how many ms the next is due (-1 for none)
  Flags     no-writes
  Cost      O(most)
]]
function calls.dueGroups(KEYS, a, ARGV)
  local base, open, deadlines = unpack(KEYS)
  local now = clock.now()
  local due, wait_ms = {}, -1
  local owners = redis.call("ZREVRANGE", deadlines, 0, a.most - 1)
  owners[#owners + 1] = base
  for _, owner in ipairs(owners) do
    local first = redis.call("ZRANGE", owner .. ":toril:groups-open", 0, 0, "WITHSCORES")
    local left_ms = first[2] and math.max(0, tonumber(first[2]) - now)
    if left_ms == 0 then due[#due + 1] = owner end
    if left_ms and (wait_ms < 0 or left_ms < wait_ms) then wait_ms = left_ms end
  end
  return { due, wait_ms }
end
