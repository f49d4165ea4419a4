--- The memory of jobs that must not be added twice: it outlives the job, and expires by itself.

local function isRemembered(queue, id, key)
  return redis.call("GET", queue.base .. ":toril:once:" .. id) == key
end

local function rememberOnce(queue, id, key, ms)
  redis.call("SET", queue.base .. ":toril:once:" .. id, key, "PX", ms)
end
