--- The memory of jobs that must not be added twice: it outlives the job, and expires by itself.
--- An id may be used again for other work: the last key is remembered under the id itself, and earlier
--- keys next to it.

function once.isRemembered(queue, id, key)
  local name = queue.base .. ":toril:once:" .. id
  local last = redis.call("GET", name)
  if not last or last == key then return last == key end
  return redis.call("EXISTS", name .. ":" .. key) == 1
end

function once.remember(queue, id, key, ms)
  local name = queue.base .. ":toril:once:" .. id
  local last = redis.call("SET", name, key, "PX", ms, "GET")
  if last and last ~= key then redis.call("SET", name .. ":" .. last, "", "PX", ms) end
end
