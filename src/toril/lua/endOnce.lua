#!lua flags=allow-oom
--[[
  endOnce: write down what work gave that is to be done once.

  Keys      record
  Args      job str, fence int, ms int (how long to remember)
            After the map, raw: the result as JSON.
  Returns   1, or 0 when a later attempt has taken over
  Cost      O(1)
]]
local record = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
local result = ARGV[2]

local known = redis.call("HMGET", record, "state", "job", "fence")
if known[1] and (known[2] ~= a.job or tonumber(known[3]) ~= a.fence) then return 0 end
redis.call("HSET", record, "state", "done", "job", a.job, "fence", a.fence, "result", result)
redis.call("PEXPIRE", record, a.ms)
return 1
