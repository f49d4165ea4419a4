--[[
  glanceGroups: the newest groups that the queue owns.

  Keys      base, groups
  Args      most int, fields [str]
  Returns   id, and the fields of its record, for each
  Flags     no-writes
  Cost      O(most)
]]
function calls.glanceGroups(KEYS, a, ARGV)
  local base, groups_ = unpack(KEYS)
  local found = {}
  for _, id in ipairs(redis.call("ZREVRANGE", groups_, 0, a.most - 1)) do
    found[#found + 1] = { id, redis.call("HMGET", base .. ":groups:" .. id, unpack(a.fields)) }
  end
  return found
end
