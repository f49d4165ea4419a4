--[[
  listGroup: some members of a group in their order, each with its status.

  Nothing records that a member is running: its lock shows it.

  Keys      members, plan, compensations, results
  Args      first int, most int
  Returns   number, job key, status, name, label, kind, the numbers of those it waits for, when it was
            started, when it ended and why, for each member; and if it is undone, the key of the job
            that does it, how that ended and when. Nothing if there is no such group
  Flags     no-writes
  Cost      O(most + compensations of the group)
]]
--- How each compensation is going, by the number of its member.
local function readUndoings(compensations)
  local flat, undo_of = redis.call("HGETALL", compensations), {} -- bounded: members of a group
  for i = 1, #flat, 2 do
    local number = tonumber(string.match(flat[i], "(%d+)$"))
    if number then undo_of[number] = { flat[i], flat[i + 1] } end
  end
  return undo_of
end

--- The members from one number to another, those of which a plan and a status are there.
local function readMembers(members_, plan, first, last)
  local numbers, planned, jobs, found = {}, {}, {}, {}
  for number = first, last do
    numbers[#numbers + 1] = number
  end
  for i, packed in ipairs(redis.call("HMGET", plan, unpack(numbers))) do
    local is_read, member = pcall(cmsgpack.unpack, packed or "")
    if is_read and type(member) == "table" and type(member[1]) == "string" then
      planned[#planned + 1], jobs[#jobs + 1] = { numbers[i], member }, member[1]
    end
  end
  if #jobs == 0 then return found end
  for i, status in ipairs(redis.call("HMGET", members_, unpack(jobs))) do
    if status then found[#found + 1] = { planned[i][1], planned[i][2], status } end
  end
  return found
end

--- The members that the gate before a member waits for.
local function waitedFor(plan, gate)
  if not gate then return {} end
  local is_read, found = pcall(cmsgpack.unpack, redis.call("HGET", plan, "g" .. gate) or "")
  return is_read and type(found) == "table" and found[1] or {}
end

--- Nothing records that a member is running, or on its way to another slot.
local function statusNow(members_, number, member, status, is_away)
  if status ~= "pending" then return status end
  if is_away then
    local key = string.match(members_, "^(.*):jobs$")
    return remotes.isOnItsWay(key, member[4], clock.digits(number)) and "in_transit" or status
  end
  return redis.call("EXISTS", member[1] .. ":lock") == 1 and "active" or status
end

local function describe(members_, plan, results, number, member, status)
  local job = member[1]
  local is_away = parcels.isAway(job)
  status = statusNow(members_, number, member, status, is_away)
  local noted = redis.call("HMGET", results, number .. ".at", number .. ".why", "c" .. number .. ".at")
  local started = not is_away and redis.pcall("HGET", job, "processedOn")
  local line = { number, job, status, member[2], member[6] or member[2], member[4] or "",
    waitedFor(plan, member[8]), type(started) == "string" and started or "", noted[1] or "", noted[2] or "" }
  return line, noted[3] or ""
end

function calls.listGroup(KEYS, a, ARGV)
  local members_, plan, compensations, results = unpack(KEYS)
  local last = math.min(redis.call("HLEN", members_), a.first + a.most) - 1
  if last < a.first then return {} end
  local undo_of, found = readUndoings(compensations), {}
  for i, one in ipairs(readMembers(members_, plan, a.first, last)) do
    local line, undone_at = describe(members_, plan, results, unpack(one))
    local undo = undo_of[one[1]]
    if undo then line[11], line[12], line[13] = undo[1], undo[2], undone_at end
    found[i] = line
  end
  return found
end
