--[[
  renew: extend the locks of running jobs.

  A lock that is no longer ours is left alone. Renewing also shows that the job has not stalled.

  Keys      base, stalled
  Args      locks list of pairs (id, token), lock_ms int
  Returns   the ids whose locks are lost, {id, reason} for those that somebody cancelled
  Keeps     I2, I3
  Flags     allow-oom
  Cost      O(locks)
]]
function calls.renew(KEYS, a, ARGV)
  local base, stalled = unpack(KEYS)
  local lost, cancelled, ids = {}, {}, {}
  for _, lock in ipairs(a.locks) do
    local id, token = lock[1], lock[2]
    local job = base .. ":" .. id
    if redis.pcall("GET", job .. ":lock") == token then
      redis.call("SET", job .. ":lock", token, "PX", a.lock_ms)
      ids[#ids + 1] = id
      local reason = redis.pcall("HGET", job, "x.cancel")
      if type(reason) == "string" then
        cancelled[#cancelled + 1] = { id, reason }
      end
    else
      lost[#lost + 1] = id
    end
  end
  if #ids > 0 then
    redis.call("SREM", stalled, unpack(ids))
  end
  return { lost, cancelled }
end
