--[[
  listGroup: some members of a group in their order, each with its status.

  Nothing records that a member is running: its lock shows it.

  Keys      members, plan, compensations, results
  Args      first int, most int
  Returns   number, job key, status, name, label, kind, the numbers of those it waits for, when it was
            started, when it ended and why, for each member; and if it is undone, the key of the job
            that does it, how that ended and when. Nothing if there is no such group
  Flags     no-writes
  Cost      O(members)
]]
local function pairsOf(key)
  local flat, found = redis.call("HGETALL", key), {} -- bounded: members of a group
  for i = 1, #flat, 2 do
    found[flat[i]] = flat[i + 1]
  end
  return found, #flat / 2
end

local function readUndoings(compensations)
  local undo_of = {}
  for job, status in pairs((pairsOf(compensations))) do
    local number = tonumber(string.match(job, "(%d+)$"))
    if number then undo_of[number] = { job, status } end
  end
  return undo_of
end

--- The members that the gate before a member waits for.
local function waitedFor(plan, gate)
  if not gate then return {} end
  local is_read, found = pcall(cmsgpack.unpack, redis.call("HGET", plan, "g" .. gate) or "")
  return is_read and type(found) == "table" and found[1] or {}
end

function calls.listGroup(KEYS, a, ARGV)
  local members_, plan, compensations, results = unpack(KEYS)
  local statuses, count = pairsOf(members_)
  local undo_of, found = readUndoings(compensations), {}
  for number = a.first, math.min(count, a.first + a.most) - 1 do
    local is_read, member = pcall(cmsgpack.unpack, redis.call("HGET", plan, number) or "")
    local status = is_read and type(member) == "table" and statuses[member[1]]
    if status then
      local is_away = parcels.isAway(member[1])
      if status == "pending" and is_away then
        local key = string.match(members_, "^(.*):jobs$")
        if remotes.isOnItsWay(key, member[4], clock.digits(number)) then status = "in_transit" end
      elseif status == "pending" and redis.call("EXISTS", member[1] .. ":lock") == 1 then
        status = "active"
      end
      local noted = redis.call("HMGET", results, number .. ".at", number .. ".why", "c" .. number .. ".at")
      local started = not is_away and redis.pcall("HGET", member[1], "processedOn")
      local line = { number, member[1], status, member[2], member[6] or member[2], member[4] or "",
        waitedFor(plan, member[8]), type(started) == "string" and started or "", noted[1] or "", noted[2] or "" }
      local undo = undo_of[number]
      if undo then line[11], line[12], line[13] = undo[1], undo[2], noted[3] or "" end
      found[#found + 1] = line
    end
  end
  return found
end
