#!lua flags=allow-oom
--[[
  abandonOnce: work that is to be done once failed; let the next attempt begin.

  Keys      record
  Args      job str, fence int
  Returns   1, or 0 when it is not this attempt's to abandon
  Cost      O(1)
]]
local record = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])

local known = redis.call("HMGET", record, "state", "job", "fence")
if known[1] ~= "running" or known[2] ~= a.job or tonumber(known[3]) ~= a.fence then return 0 end
redis.call("DEL", record)
return 1
