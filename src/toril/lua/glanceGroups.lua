#!lua flags=no-writes
--[[
  glanceGroups: the newest groups that the queue owns.

  Keys      base, groups
  Args      most int, fields [str]
  Returns   id, and the fields of its record, for each
  Cost      O(most)
]]
local base, groups = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])

local found = {}
for _, id in ipairs(redis.call("ZREVRANGE", groups, 0, a.most - 1)) do
  found[#found + 1] = { id, redis.call("HMGET", base .. ":groups:" .. id, unpack(a.fields)) }
end
return found
