#!lua flags=allow-oom
--[[
  freeDeduplication: give a deduplication id free, if `owner` is the job that owns it.

  Keys      deduplication
  Args      owner str
  Returns   1 when it was given free, else 0
  Cost      O(1)
]]
local deduplication = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])

if redis.call("GET", deduplication) ~= a.owner then return 0 end
return redis.call("DEL", deduplication)
