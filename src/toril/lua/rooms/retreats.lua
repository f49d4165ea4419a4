--- The way back of a group with stages: which members may be undone next.
---
--- A member may be undone when nothing behind it, at any distance, is open. A member is open if it waits
--- to be undone, is being undone or could not be, or if it still runs and would be undone. It is clear
--- when neither it nor anything behind it is open; a gate is clear when all of its members are.
---
--- `:retreat` keeps what is needed for one step: `N` how many gates behind member N are not clear, `oN`
--- that it is open itself, `gN` how many members of gate N are not clear, `ready` the numbers of those
--- that may be undone and have not been taken. It can be rebuilt at any time from `:plan`, `:jobs`,
--- `:undo` and `:compensations`, and is, whenever these are not as they were (`was`): workers of the
--- previous version change them and leave it alone. It lives for an hour, since they do not delete it.

local KEPT_MS = "3600000"

--- What the way back depends on. Members only go from running to ended, compensations to completed; so
--- equal counts mean the same members. Nothing for a group in which a member ran again: its earlier runs
--- are not part of the graph, so the whole group is examined each time.
local function reckonedFrom(group)
  local known = redis.call("HMGET", group.key, "x.request", "x.repeats")
  if known[2] then return nil end
  local live = group.total - group.completed - group.failed - group.cancelled
  return string.format("%d %d %d %d %d %s", redis.call("LLEN", group.key .. ":undo"),
    redis.call("HLEN", group.key .. ":compensations"), group.running, group.broken, live, known[1] or "")
end

--- Read the way back as it was left, before anything in the group is changed.
function retreats.recall(group)
  if not group.follows_graph or group.state == "ACTIVE" or group.state == "BLOCKED" then return end
  local kept = redis.pcall("HMGET", group.key .. ":retreat", "was", "ready")
  if not kept.err and kept[1] and kept[1] == reckonedFrom(group) then
    group.way = { ready = kept[2] }
  end
end

--- Keep it for the next step.
function retreats.remember(group)
  local was = group.way and reckonedFrom(group)
  if was then redis.call("HSET", group.key .. ":retreat", "was", was, "ready", group.way.ready) end
end

local function offer(way, number)
  way.ready = way.ready .. number .. " "
end

--- Is nothing behind a member open?
local function isFree(group, number)
  return (redis.call("HGET", group.key .. ":retreat", number) or "0") == "0"
end

--- Offer members that became free together; the one that completed last is undone first.
local function offerInOrder(group, freed)
  if #freed < 2 then
    if freed[1] then offer(group.way, freed[1]) end
    return
  end
  local is_freed = {}
  for _, number in ipairs(freed) do is_freed[number] = true end
  local waiting = redis.call("LRANGE", group.key .. ":undo", 0, -1) -- bounded: members of a group
  for i = #waiting, 1, -1 do
    if is_freed[waiting[i]] then offer(group.way, waiting[i]) end
  end
end

--- A member is clear: the gate before it may be too, and what comes before that.
local function clear(group, number)
  local key, waiting, freed = group.key .. ":retreat", { number }, {}
  while #waiting > 0 do
    local gate_number = stages.member(group.key, table.remove(waiting))[8]
    local gate = gate_number and "g" .. clock.digits(gate_number)
    if gate and redis.call("HINCRBY", key, gate, "-1") == 0 then
      for _, before in ipairs(cmsgpack.unpack(redis.call("HGET", group.key .. ":plan", gate))[1]) do
        before = clock.digits(before)
        if redis.call("HINCRBY", key, before, "-1") == 0 then
          local is_open = redis.call("HEXISTS", key, "o" .. before) == 1
          local found = is_open and freed or waiting
          found[#found + 1] = before
        end
      end
    end
  end
  offerInOrder(group, freed)
end

--- A member is no longer open.
function retreats.settled(group, number)
  if not group.way then return end
  local was_open = redis.call("HDEL", group.key .. ":retreat", "o" .. number) == 1
  if was_open and isFree(group, number) then clear(group, number) end
end

--- A member that had this status has ended; `is_undone` says whether it now waits to be undone.
function retreats.memberEnded(group, number, status, is_undone)
  if not group.way then return end
  if not group.undoes_late or status ~= "pending" then
    -- Nobody waited for it: if it is undone anyway, the way back has changed.
    if is_undone then group.way = nil end
  elseif not is_undone then
    retreats.settled(group, number)
  elseif isFree(group, number) then
    offer(group.way, number)
  end
end

--- The members that are open. An earlier run of a member keeps it open.
local function readOpen(group, plan, waiting)
  local open = {}
  local function note(number)
    local member = plan.members[number]
    open[number] = true
    if member and member[5] and plan.number_of[member[1]] then open[plan.number_of[member[1]]] = true end
  end
  for _, number in ipairs(waiting) do note(number) end
  local undone = redis.call("HGETALL", group.key .. ":compensations") -- bounded: members of a group
  for i = 1, #undone, 2 do
    if undone[i + 1] ~= "completed" then note(string.match(undone[i], "(%d+)$")) end
  end
  if group.undoes_late then
    local statuses = redis.call("HGETALL", group.key .. ":jobs") -- bounded: members of a group
    for i = 1, #statuses, 2 do
      local number = statuses[i + 1] == "pending" and plan.number_of[statuses[i]]
      if number then open[number] = true end
    end
  end
  return open
end

--- How many gates behind each member are not clear, and how many members of each gate.
local function count(plan, open)
  local behind, unclear, countBehind = {}, {}, nil
  local function countMembers(gate)
    if not unclear[gate] then
      local found = 0
      for _, member in ipairs(plan.gates[gate][2]) do
        member = clock.digits(member)
        if countBehind(member) > 0 or open[member] then found = found + 1 end
      end
      unclear[gate] = found
    end
    return unclear[gate]
  end
  function countBehind(number)
    if not behind[number] then
      local found = 0
      for _, gate in ipairs(plan.members[number][7] or {}) do
        if countMembers(gate) > 0 then found = found + 1 end
      end
      behind[number] = found
    end
    return behind[number]
  end
  for number in pairs(plan.members) do countBehind(number) end
  for gate in pairs(plan.gates) do countMembers(gate) end
  return behind, unclear
end

--- Find the way back from what is known about the members.
local function find(group, waiting)
  local key, plan = group.key .. ":retreat", stages.plan(group)
  local open = readOpen(group, plan, waiting)
  local behind, unclear = count(plan, open)
  local written, way = {}, { ready = "" }
  local function keep(field, value)
    written[#written + 1], written[#written + 2] = field, value
  end
  for number, found in pairs(behind) do
    if found > 0 then keep(number, clock.digits(found)) end
    if open[number] then keep("o" .. number, "") end
  end
  for gate, found in pairs(unclear) do
    if found > 0 then keep("g" .. clock.digits(gate), clock.digits(found)) end
  end
  redis.call("UNLINK", key)
  for first = 1, #written, 1000 do
    redis.call("HSET", key, unpack(written, first, math.min(first + 999, #written)))
  end
  redis.call("PEXPIRE", key, KEPT_MS)
  for i = #waiting, 1, -1 do
    if behind[waiting[i]] == 0 then offer(way, waiting[i]) end
  end
  group.way = way
end

--- Take members out of `:undo` that may be undone now, at most so many; nothing if there are none.
function retreats.take(group, most)
  if not group.way then
    local waiting = redis.call("LRANGE", group.key .. ":undo", 0, -1) -- bounded: members of a group
    if #waiting == 0 then return nil end
    find(group, waiting)
  end
  local taken, way = {}, group.way
  while #taken < most and way.ready ~= "" do
    local number, rest = string.match(way.ready, "^(%d+) (.*)$")
    way.ready = rest
    if redis.call("LREM", group.key .. ":undo", "-1", number) == 1 then taken[#taken + 1] = number end
  end
  return #taken > 0 and taken or nil
end
