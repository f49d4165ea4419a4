--[[
  endOnce: write down the result of run-once work.

  Keys      record
  Args      job str, fence int, ms int (how long to remember)
            After the map, raw: the result as JSON.
  Returns   1, or 0 when a later attempt has taken over
  Flags     allow-oom
  Cost      O(1)
]]
function calls.endOnce(KEYS, a, ARGV)
  local record = unpack(KEYS)
  local result = ARGV[2]

  local known = hashes.read(record, "state", "job", "fence")
  if known.state and (known.job ~= a.job or tonumber(known.fence) ~= a.fence) then return 0 end
  redis.call("HSET", record, "state", "done", "job", a.job, "fence", a.fence, "result", result)
  redis.call("PEXPIRE", record, a.ms)
  return 1
end
