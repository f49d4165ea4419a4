--- @include "includes/lanes"
--- @include "includes/groups"
--- A child that is to run again is pending again; its parent stays where it is.
local function relinkToParent(job, parent_key)
  if not parent_key or redis.call("EXISTS", parent_key) == 0 then return end
  local was_listed = redis.call("ZREM", parent_key .. ":unsuccessful", job)
    + redis.call("HDEL", parent_key .. ":failed", job)
    + redis.call("HDEL", parent_key .. ":processed", job)
  if was_listed > 0 then
    redis.call("SADD", parent_key .. ":dependencies", job)
  end
end

--- Let a job run again that is out of `state`, completed or failed. Returns nothing for an id
--- without a job.
local function retryJob(queue, gate, id, state, resets_attempts)
  local job = queue.base .. ":" .. id
  local known = redis.call("HMGET", job, "name", "priority", "parentKey", "opts", "x.lane", "x.group")
  if not known[1] then return false end
  if known[6] then groupOnRetried(known[6], job, clock()) end
  redis.call("HDEL", job, "finishedOn", "processedOn", "defa", "x.cancel",
    state == "failed" and "failedReason" or "returnvalue")
  if resets_attempts then
    redis.call("HDEL", job, "atm", "ats")
  end
  relinkToParent(job, known[3])
  if known[5] then
    enterLane(queue, known[5], id, PLAIN)
  else
    local is_lifo = known[4] and string.find(known[4], '"lifo":true', 1, true)
    placeReady(queue, gate, id, tonumber(known[2]) or 0, is_lifo and "RPUSH" or "LPUSH")
  end
  emitTrimmed(queue, gate, "waiting", "jobId", id, "prev", state)
  return true
end
