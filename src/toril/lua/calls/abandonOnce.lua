--[[
  abandonOnce: work that is to be done once failed; let the next attempt begin.

  Keys      record
  Args      job str, fence int
  Returns   1, or 0 when it is not this attempt's to abandon
  Flags     allow-oom
  Cost      O(1)
]]
function calls.abandonOnce(KEYS, a, ARGV)
  local record = unpack(KEYS)
  local known = hashes.read(record, "state", "job", "fence")
  if known.state ~= "running" or known.job ~= a.job or tonumber(known.fence) ~= a.fence then return 0 end
  redis.call("DEL", record)
  return 1
end
