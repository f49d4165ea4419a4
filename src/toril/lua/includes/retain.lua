--- @lazily
--- Remove old finished jobs as a retention asks, at most a thousand in one call; the next finish
--- goes on. No event tells of them.
local function removeFinished(queue, set, ids)
  if #ids == 0 then return end
  redis.call("ZREM", set, unpack(ids))
  for _, id in ipairs(ids) do
    removeAnyJob(queue, id, { keeps_deduplication = true })
  end
end

local function retain(queue, set, keep, now)
  if keep.age then
    local limit = math.max(math.min(keep.limit or 1000, 1000), 0)
    removeFinished(queue, set, redis.call("ZRANGEBYSCORE", set, 0, now - keep.age * 1000,
      "LIMIT", 0, limit))
  end
  if keep.count and keep.count > 0 then
    local excess = math.min(redis.call("ZCARD", set) - keep.count, 1000)
    if excess > 0 then
      removeFinished(queue, set, redis.call("ZRANGE", set, 0, excess - 1))
    end
  end
end
