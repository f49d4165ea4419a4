--[[
  groupResults: what the completed members of a group returned.

  Keys      group (record), members, plan, results
  Args      none
  Returns   label and result, as JSON, for each; nothing if there is no such group
  Flags     no-writes
  Cost      O(members)
]]
function calls.groupResults(KEYS, a, ARGV)
  local group, members_, plan, results = unpack(KEYS)
  local total = tonumber(redis.call("HGET", group, "totalJobs") or nil)
  if not total then return nil end
  local found = {}
  for number = 0, total - 1 do
    local is_read, member = pcall(cmsgpack.unpack, redis.call("HGET", plan, number) or "")
    if is_read and type(member) == "table" and redis.call("HGET", members_, member[1]) == "completed" then
      local value = redis.call("HGET", results, number)
        or not parcels.isAway(member[1]) and redis.call("HGET", member[1], "returnvalue")
      if value then found[#found + 1] = { member[6] or member[2], value } end
    end
  end
  return found
end
