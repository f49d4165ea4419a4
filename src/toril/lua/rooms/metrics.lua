--- Count a finished job in the per-minute metrics, which go back as many points as the worker keeps.
function metrics.count(queue, kind, points, now)
  local key = queue.base .. ":metrics:" .. kind
  local before = redis.call("HINCRBY", key, "count", 1) - 1
  local prev_ts, prev_count = hashes.values(key, "prevTS", "prevCount")
  if not prev_ts then
    redis.call("HSET", key, "prevTS", now, "prevCount", 0)
    return
  end
  local minutes = math.floor(now / 60000) - math.floor(tonumber(prev_ts) / 60000)
  minutes = math.min(minutes, points)
  if minutes <= 0 then return end
  local data = key .. ":data"
  redis.call("LPUSH", data, before - tonumber(prev_count or 0))
  local zeros = minutes - 1
  while zeros > 0 do
    local part = {}
    for i = 1, math.min(zeros, 1000) do part[i] = 0 end
    redis.call("LPUSH", data, unpack(part))
    zeros = zeros - #part
  end
  redis.call("LTRIM", data, 0, points - 1)
  redis.call("HSET", key, "prevCount", before, "prevTS", now)
end
