--[[
  locate: the state of a job, and its result.

  A job that exists, is not running and is not in a sorted set counts as waiting: searching a long list
  for it would cost the server more than the answer is worth. Short lists are searched, and a job that
  is in no list is "unknown", as BullMQ calls it: nobody will run it.

  Keys      wait, paused, active, prioritized, delayed, waiting_children, completed, failed, job,
            lanes_delayed, in_transit
  Args      id str, is_brief bool? (only the state)
  Returns   the state, and the return value as JSON or the reason for the failure if it is finished;
            nothing if the job does not exist. A job on its way to another slot has no hash here.
  Flags     no-writes
  Cost      O(jobs running), and O(jobs waiting) up to 10,000
]]
local LONG = 10000

function calls.locate(KEYS, a, ARGV)
  local wait, paused, active, prioritized, delayed, waiting_children, completed, failed, job, lanes_delayed, in_transit = unpack(KEYS)
  if redis.call("EXISTS", job) == 0 then
    return redis.call("HEXISTS", in_transit, a.id) == 1 and { "in_transit" } or {}
  end
  if redis.call("ZSCORE", completed, a.id) then
    return { "completed", not a.is_brief and redis.call("HGET", job, "returnvalue") or nil }
  end
  if redis.call("ZSCORE", failed, a.id) then
    return { "failed", not a.is_brief and redis.call("HGET", job, "failedReason") or nil }
  end
  if redis.call("ZSCORE", delayed, a.id) then return { "delayed" } end
  if redis.call("ZSCORE", prioritized, a.id) then return { "prioritized" } end
  if redis.call("ZSCORE", waiting_children, a.id) then return { "waiting_children" } end
  local lane = redis.call("HGET", job, "x.lane")
  if lane and (redis.call("ZSCORE", lanes_delayed, laneNames.member(lane, a.id, laneNames.PLAIN))
      or redis.call("ZSCORE", lanes_delayed, laneNames.member(lane, a.id, laneNames.STARTED))) then
    return { "delayed" }
  end
  if redis.call("LPOS", active, a.id) then return { "active" } end
  if not lane and places.isListed(a.id, LONG, wait, paused) == false then return { "unknown" } end
  return { "waiting" }
end
