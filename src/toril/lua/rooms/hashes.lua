--- Reading several fields of a hash, by their names: what is not there is false.

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

--- The values alone, for those who read at every call: `local name, parent_key = hashes.values(job,
--- "name", "parentKey")`. `make check` compares the fields with the names that they are given.
function hashes.values(key, ...)
  return unpack(redis.call("HMGET", key, ...))
end

--- All fields, of a hash that has few; what is not there is nil.
function hashes.all(key)
  local words, found = redis.call("HGETALL", key), {} -- bounded: by whoever calls this
  for i = 1, #words, 2 do
    found[words[i]] = words[i + 1]
  end
  return found
end

--- As `hashes.read`, of a key that may hold anything: `err` tells when that is no hash.
function hashes.tryRead(key, ...)
  local values = redis.pcall("HMGET", key, ...)
  return values.err and { err = values.err } or named(values, ...)
end
