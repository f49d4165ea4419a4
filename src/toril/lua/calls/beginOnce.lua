--[[
  beginOnce: begin run-once work, unless it is done or being done.

  A later attempt of the same job takes over from an earlier one, because the queue has taken the job
  away from that attempt.

  Keys      record
  Args      job str, fence int, ms int (how long the work may take)
  Returns   1 begun; 2 and the result if it is done; 0 and how many ms it may still take if
            another job is working on it
  Cost      O(1)
]]
function calls.beginOnce(KEYS, a, ARGV)
  local record = unpack(KEYS)
  local known = hashes.read(record, "state", "job", "fence", "result")
  if known.state == "done" then return { 2, known.result } end
  if known.state and (known.job ~= a.job or tonumber(known.fence) > a.fence) then
    return { 0, redis.call("PTTL", record) }
  end
  redis.call("HSET", record, "state", "running", "job", a.job, "fence", a.fence)
  redis.call("PEXPIRE", record, a.ms)
  return { 1 }
end
