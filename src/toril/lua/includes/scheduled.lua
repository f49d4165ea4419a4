--- Is this job the pending iteration of a scheduler? Without it the schedule would end.
local function isNextIteration(queue, id)
  if string.sub(id, 1, 7) ~= "repeat:" then return false end
  local scheduler = redis.call("HGET", queue.base .. ":" .. id, "rjk")
  if not scheduler then return false end
  local at = redis.call("ZSCORE", queue["repeat"], scheduler)
  return at ~= false and id == "repeat:" .. scheduler .. ":" .. at
end
