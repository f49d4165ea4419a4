--[[
  freeDeduplication: release a deduplication id: whoever owns it, or only if `owner` does.

  Keys      base, deduplication
  Args      owner str?, flight str?, request str?, is_late bool? (rooms/requests.lua)
  Returns   1 if it was released, else 0
  Keeps     I4
  Flags     allow-oom
  Cost      O(1)
]]
function calls.freeDeduplication(KEYS, a, ARGV)
  local base, deduplication_ = unpack(KEYS)
  return requests.makeOnce(queues.at(base), a, clock.now(), function()
    if a.owner and redis.call("GET", deduplication_) ~= a.owner then return 0 end
    return redis.call("DEL", deduplication_)
  end)
end
