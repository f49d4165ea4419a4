--- Let in the delayed jobs whose time has come, at most a thousand.
local function promoteDue(queue, gate, now)
  local due = redis.call("ZRANGEBYSCORE", queue.delayed, 0, (now + 1) * 4096 - 1, "LIMIT", 0, 1000)
  if #due == 0 then return end
  redis.call("ZREM", queue.delayed, unpack(due))
  for _, id in ipairs(due) do
    local job = queue.base .. ":" .. id
    placeReady(queue, gate, id, tonumber(redis.call("HGET", job, "priority")) or 0)
    emit(queue, "waiting", "jobId", id, "prev", "delayed")
    redis.call("HSET", job, "delay", 0)
  end
  wake(queue, gate)
end
