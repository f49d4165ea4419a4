--[[
  dueGroups: of the queues that a worker of this queue looks after, those that own groups due for a
  look: this queue, and the owners of groups with a time limit that have members here.

  Keys      base, open, deadlines (the queues that own groups with a limit, by the latest one)
  Args      most int (queues to look at)
  Returns   the bases of these queues, in how many ms the next group is due (-1 for none), and the bases of
            owners in other slots, which must be asked themselves
  Flags     no-writes
  Cost      O(most)
]]
--- When the first group of a queue is due; those with stages have an index of their own.
local function firstDue(owner)
  local at
  for _, index in ipairs({ owner .. ":toril:groups-open", stages.index(owner) }) do
    -- A key of the wrong type tells nothing; the other queues do not wait for it.
    local first = tonumber(redis.pcall("ZRANGE", index, 0, 0, "WITHSCORES")[2])
    if first and (not at or first < at) then at = first end
  end
  return at
end

function calls.dueGroups(KEYS, a, ARGV)
  local base, open, deadlines = unpack(KEYS)
  local now = clock.now()
  local due, wait_ms, away = {}, -1, {}
  local owners = redis.call("ZREVRANGE", deadlines, 0, a.most - 1)
  owners[#owners + 1] = base
  for _, owner in ipairs(owners) do
    local is_away = parcels.isAway(owner)
    if is_away then away[#away + 1] = owner end
    local at = not is_away and firstDue(owner)
    local left_ms = at and math.max(0, at - now)
    if left_ms == 0 then due[#due + 1] = owner end
    if left_ms and (wait_ms < 0 or left_ms < wait_ms) then wait_ms = left_ms end
  end
  return { due, wait_ms, away }
end
