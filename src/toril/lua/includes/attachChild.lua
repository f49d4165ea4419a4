--- Does the job that exists belong to another parent, who is still there?
local function belongsElsewhere(queue, job)
  local known = redis.call("HGET", queue.base .. ":" .. job.id, "parentKey")
  return known and known ~= job.parent_key and redis.call("EXISTS", known) == 1
end

--- Tie a job that exists to the parent of the request. One that is completed counts as done; letting
--- the parent go is left to the caller.
local function attachChild(queue, job)
  local key = queue.base .. ":" .. job.id
  if redis.call("ZSCORE", queue.completed, job.id) then
    local value = redis.call("HGET", key, "returnvalue")
    redis.call("HSET", job.parent_key .. ":processed", key, value or "null")
  else
    redis.call("SADD", job.parent_key .. ":dependencies", key)
  end
  redis.call("HSET", key, "parentKey", job.parent_key, "parent", job.parent)
end
