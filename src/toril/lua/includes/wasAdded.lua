--- Was this job added by the same call, whose reply got lost? `added` in the stream tells it of a job
--- that has run and gone since.
local function wasAdded(queue, job, data)
  local stored = redis.call("HGET", queue.base .. ":" .. job.id, "data")
  if stored then
    return not job.custom or stored == data
  end
  for _, entry in ipairs(redis.call("XREVRANGE", queue.events, "+", "-", "COUNT", 2000)) do
    local fields = entry[2]
    if fields[2] == "added" and fields[4] == job.id then return true end
  end
  return false
end
