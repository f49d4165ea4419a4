--- Let a job run now that is out of `delayed` already.
local function promoteJob(queue, gate, id)
  local job = queue.base .. ":" .. id
  local known = redis.pcall("HMGET", job, "name", "priority")
  if not known[1] then return false end
  placeReady(queue, gate, id, tonumber(known[2]) or 0)
  redis.call("HSET", job, "delay", 0)
  emitTrimmed(queue, gate, "waiting", "jobId", id, "prev", "delayed")
  return true
end
