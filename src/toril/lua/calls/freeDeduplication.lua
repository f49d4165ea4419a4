--[[
  freeDeduplication: release a deduplication id, if `owner` is the job that owns it.

  Keys      deduplication
  Args      owner str
  Returns   1 if it was released, else 0
  Flags     allow-oom
  Cost      O(1)
]]
function calls.freeDeduplication(KEYS, a, ARGV)
  local deduplication_ = unpack(KEYS)
  if redis.call("GET", deduplication_) ~= a.owner then return 0 end
  return redis.call("DEL", deduplication_)
end
