--- How many delayed jobs one call lets in, whatever it does besides: what is due beyond that, the next
--- call finds.
local MOST_DUE = 200

--- Let in the delayed jobs whose time has come.
local function promoteDue(queue, gate, now)
  local let_in = rawget(queue, "let_in") or 0
  if let_in >= MOST_DUE then return end
  local due = redis.call("ZRANGEBYSCORE", queue.delayed, 0, (now + 1) * 4096 - 1,
    "LIMIT", 0, MOST_DUE - let_in)
  if #due == 0 then return end
  queue.let_in = let_in + #due
  redis.call("ZREM", queue.delayed, unpack(due))
  for _, id in ipairs(due) do
    local job = queue.base .. ":" .. id
    -- A key that holds no hash must not keep the others waiting; whoever takes it finds out.
    placeReady(queue, gate, id, tonumber(redis.pcall("HGET", job, "priority")) or 0)
    emit(queue, "waiting", "jobId", id, "prev", "delayed")
    redis.pcall("HSET", job, "delay", 0)
  end
  wake(queue, gate)
end
