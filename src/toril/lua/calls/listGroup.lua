--[[
  listGroup: the members of a group in their order, each with its status.

  Nobody writes that a member is running: whether it is shows its lock.

  Keys      members, plan, compensations
  Args      none
  Returns   job key, status, name for each member, and of one that is undone the key of the job that
            does it and how that ended; nothing when there is no such group
  Flags     no-writes
  Cost      O(members)
]]
function calls.listGroup(KEYS, a, ARGV)
  local members_, plan, compensations = unpack(KEYS)
  local statuses, found = {}, {}
  local flat = redis.call("HGETALL", members_) -- bounded: members_ of a group
  for i = 1, #flat, 2 do
    statuses[flat[i]] = flat[i + 1]
  end
  local undone = redis.call("HGETALL", compensations) -- bounded: members_ of a group
  local undo_of = {}
  for i = 1, #undone, 2 do
    local number = tonumber(string.match(undone[i], "(%d+)$"))
    if number then undo_of[number] = { undone[i], undone[i + 1] } end
  end
  for number = 0, #flat / 2 - 1 do
    local is_read, member = pcall(cmsgpack.unpack, redis.call("HGET", plan, number) or "")
    local status = is_read and type(member) == "table" and statuses[member[1]]
    if status then
      if status == "pending" and redis.call("EXISTS", member[1] .. ":lock") == 1 then
        status = "active"
      end
      found[#found + 1] = { member[1], status, member[2], unpack(undo_of[number] or {}) }
    end
  end
  return found
end
