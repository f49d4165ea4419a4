--[[
  abandonOnce: run-once work has failed; let the next attempt begin.

  Keys      record
  Args      job str, fence int
  Returns   1, or 0 if the work does not belong to this attempt
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
