--- Reading several fields of a hash by their names; missing ones are false.

local function named(values, ...)
  local names, found = { ... }, {}
  for i = 1, #names do
    found[names[i]] = values[i]
  end
  return found
end

function hashes.read(key, ...)
  return named(redis.call("HMGET", key, ...), ...)
end

--- The values alone, for code that runs in every call: `local name, parent_key = hashes.values(job,
--- "name", "parentKey")`. `make check` compares the fields with the names that they are given.
function hashes.values(key, ...)
  return unpack(redis.call("HMGET", key, ...))
end

--- All fields of a hash that has few; missing ones are nil.
function hashes.all(key)
  local words, found = redis.call("HGETALL", key), {} -- bounded: by the caller
  for i = 1, #words, 2 do
    found[words[i]] = words[i + 1]
  end
  return found
end

--- Like `hashes.read`, for a key that may hold anything: `err` is set if it is not a hash.
function hashes.tryRead(key, ...)
  local values = redis.pcall("HMGET", key, ...)
  return values.err and { err = values.err } or named(values, ...)
end
