#!lua name=machine
-- Runs steps from a state, one after another, and undoes each of them; see machine.py.
--
-- ARGV   the state: how many keys, then key, kind and packed content of each
--        what the server holds too much: how many keys, then the keys
--        what it lacks: how many keys, then the keys
--        the steps: how many, then for each its script, the time in s, how many keys and the keys,
--        how many words and the words
-- Returns for each step { changes, events, reply, renewed } or an error's text, and the lines that
-- were run.
-- `changes` are key, kind and packed content of what is different now; the kind is "" for a key that
-- is gone. A kind that ends in "!" has a time to live; `renewed` are the keys that were given one in
-- this step, and for how long: afterwards nobody knows.
-- The server, and what else a library does not have while it is being loaded, is looked up by steps.
local function server() return redis end
local function call(...) return server().call(...) end

local asked, at
local function word()
  at = at + 1
  return asked[at]
end

local function words()
  local count = tonumber(word())
  at = at + count
  return { unpack(asked, at - count + 1, at) }
end

local kinds, contents

local FOREVER_MS = 1000000000000
local WRITERS = { string = "SET", list = "RPUSH", hash = "HSET", set = "SADD", zset = "ZADD" }
local function restore(key)
  local kind, has_end = string.match(kinds[key], "^(%l+)(!?)$")
  call(WRITERS[kind], key, unpack(cmsgpack.unpack(contents[key])))
  if has_end == "!" then call("PEXPIRE", key, FOREVER_MS) end
end

local READERS = {
  string = function(key) return { call("GET", key) } end,
  list = function(key) return call("LRANGE", key, 0, -1) end,
  hash = function(key) return call("HGETALL", key) end,
  set = function(key) return call("SMEMBERS", key) end,
  zset = function(key) return call("ZRANGE", key, 0, -1, "WITHSCORES") end
}
local READS, KNOWN
local function setOf(words)
  local set = {}
  for found in string.gmatch(words, "%S+") do set[found] = true end
  return set
end
local READING = [[EXISTS GET MGET TYPE HGET HMGET HGETALL HLEN HKEYS HEXISTS HSCAN LLEN
    LRANGE LINDEX LPOS SCARD SISMEMBER SMEMBERS SSCAN SRANDMEMBER ZCARD ZCOUNT ZSCORE ZMSCORE ZRANGE
    ZREVRANGE ZRANGEBYSCORE ZREVRANGEBYSCORE ZRANGEBYLEX ZLEXCOUNT ZRANK ZSCAN XRANGE XREVRANGE XLEN
    XINFO SMISMEMBER ZRANDMEMBER HRANDFIELD]]
local HAVE_SEVERAL_KEYS = { DEL = true, LMOVE = true, UNLINK = true, RENAME = true, COPY = true }
local LEFT_MS = 1000

-- What the scripts call: the server, but for time, which stands still. Notes what they touch.
local clock, touched, events, covered
local at_load = {} -- constants are read once, when the library is loaded
local function touch(key)
  if not touched[key] then
    touched[key] = true
    touched[#touched + 1] = key
  end
end

local function watchedCall(verb, key, ...)
  if READS[verb] then return call(verb, key, ...) end
  if verb == "TIME" then return { clock, "0" } end
  if verb == "PTTL" then return math.min(call(verb, key), LEFT_MS) end
  touch(key)
  if verb == "XADD" then
    local all = { ... }
    for i, argument in ipairs(all) do
      if argument == "*" then
        events[#events + 1] = { key, unpack(all, i + 1) }
        break
      end
    end
  elseif HAVE_SEVERAL_KEYS[verb] then
    for _, other in ipairs({ ... }) do touch(other) end
  end
  return call(verb, key, ...)
end

local redis = {
  call = watchedCall,
  error_reply = function(text) return server().error_reply(text) end,
  sha1hex = function(text) return server().sha1hex(text) end,
  pcall = function(...)
    local is_fine, reply = pcall(watchedCall, ...)
    if is_fine or type(reply) == "table" then return reply end
    return { err = tostring(reply) }
  end
}

local function COVER(number, ...)
  (covered or at_load)[number] = true
  return ...
end

-- What BullMQ's tools do to the keys, told in our own words.
local PARTS = { logs = true, dependencies = true, processed = true, failed = true,
  unsuccessful = true, lock = true }
local NAMES = [[active wait waiting-children paused id delayed prioritized stalled-check
    completed failed stalled repeat limiter meta events pc marker de]]

local function isNamed(base, id)
  for name in pairs(KNOWN) do
    local key = base .. name
    local kind = call("TYPE", key).ok
    if kind == "list" and call("LPOS", key, id)
        or kind == "zset" and call("ZSCORE", key, id)
        or kind == "set" and call("SISMEMBER", key, id) == 1 then
      return true
    end
  end
  return false
end

local function removeOrphans(KEYS)
  local base = KEYS[1]
  for _, key in ipairs(call("KEYS", base .. "*")) do
    local rest = string.sub(key, #base + 1)
    local id, part = string.match(rest, "^([^:]*):(.*)$")
    id = id or rest
    if not KNOWN[id] and (not part or PARTS[part]) and not isNamed(base, id) then
      redis.call("DEL", base .. id)
      for name in pairs(PARTS) do redis.call("DEL", base .. id .. ":" .. name) end
    end
  end
  return 0
end

local function retryFinished(KEYS, ARGV)
  local base, id, state = KEYS[1], ARGV[1], ARGV[2]
  if redis.call("ZREM", base .. state, id) == 0 then return -3 end
  redis.call("HDEL", base .. id, "finishedOn", "processedOn",
    state == "failed" and "failedReason" or "returnvalue")
  redis.call("LPUSH", base .. "wait", id)
  redis.call("ZADD", base .. "marker", 0, "0")
  redis.call("XADD", base .. "events", "*", "event", "waiting", "jobId", id, "prev", state)
  return 0
end

-- Programs of BullMQ know nothing of groups. That they did something to a job is noted, for the checks.
local function note(base, id)
  redis.call("SADD", base .. "toril:unnoticed", id)
end

local function bullPromote(KEYS, ARGV)
  local base, id = KEYS[1], ARGV[1]
  if redis.call("ZREM", base .. "delayed", id) == 0 then return -3 end
  redis.call("HSET", base .. id, "delay", "0")
  redis.call("LPUSH", base .. "wait", id)
  redis.call("ZADD", base .. "marker", 0, "0")
  redis.call("XADD", base .. "events", "*", "event", "waiting", "jobId", id, "prev", "delayed")
  return 0
end

local function bullRemove(KEYS, ARGV)
  local base, id = KEYS[1], ARGV[1]
  if call("EXISTS", base .. id .. ":lock") == 1 then return 0 end
  local place
  for _, name in ipairs({ "wait", "paused" }) do
    if redis.call("LREM", base .. name, 0, id) > 0 then place = name end
  end
  for _, name in ipairs({ "delayed", "prioritized", "completed", "failed" }) do
    if redis.call("ZREM", base .. name, id) == 1 then place = name end
  end
  if not place then return 0 end
  redis.call("DEL", base .. id, base .. id .. ":logs")
  redis.call("XADD", base .. "events", "*", "event", "removed", "jobId", id, "prev", place)
  note(base, id)
  return 1
end

local function bullTake(KEYS, ARGV)
  local base, id = KEYS[1], ARGV[1]
  if redis.call("LREM", base .. "wait", 1, id) == 0 then return 0 end
  redis.call("LPUSH", base .. "active", id)
  redis.call("SET", base .. id .. ":lock", "node", "PX", FOREVER_MS / 1000)
  redis.call("HSET", base .. id, "processedOn", clock .. "000")
  redis.call("HINCRBY", base .. id, "ats", 1)
  redis.call("XADD", base .. "events", "*", "event", "active", "jobId", id, "prev", "waiting")
  note(base, id)
  return 1
end

local function bullEnd(KEYS, ARGV)
  local base, id, state, value = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
  if call("GET", base .. id .. ":lock") ~= "node" then return -6 end
  -- A job that is to fail is not run.
  if state == "completed" and call("HEXISTS", base .. id, "defa") == 1 then return -6 end
  redis.call("DEL", base .. id .. ":lock")
  redis.call("SREM", base .. "stalled", id)
  redis.call("LREM", base .. "active", -1, id)
  redis.call("ZADD", base .. state, clock .. "000", id)
  redis.call("HINCRBY", base .. id, "atm", 1)
  local field = state == "completed" and "returnvalue" or "failedReason"
  redis.call("HSET", base .. id, "finishedOn", clock .. "000", field, value)
  redis.call("XADD", base .. "events", "*", "event", state, "jobId", id, field, value, "prev", "active")
  if state == "failed" then
    redis.call("HDEL", base .. id, "defa")
    redis.call("XADD", base .. "events", "*", "event", "retries-exhausted", "jobId", id, "attemptsMade", 1)
  end
  return 0
end

local function library()
--LIBRARY--
return calls, serve
end

local scripts = {
  removeOrphans = removeOrphans,
  retryFinished = retryFinished,
  bullPromote = bullPromote,
  bullRemove = bullRemove,
  bullTake = bullTake,
  bullEnd = bullEnd,
  nothing = function() return 0 end,
  delete = function(KEYS) return redis.call("DEL", KEYS[1]) end,
  write = function(KEYS, ARGV) return redis.call("HSET", KEYS[1], unpack(ARGV)) end,
  pop = function(KEYS) return redis.call("ZPOPMIN", KEYS[1]) end,
  everything = function() for _, key in ipairs(call("KEYS", "*")) do touch(key) end end
}
local calls, serve = library()

local function changes()
  local found, renewed = {}, {}
  for _, key in ipairs(touched) do
    local kind = call("TYPE", key).ok
    local n = #found
    if READERS[kind] then
      local left_ms = kind == "string" and call("PTTL", key) or 0
      local has_end = left_ms > 0
      if has_end and left_ms <= FOREVER_MS / 2 then
        renewed[#renewed + 1], renewed[#renewed + 2] = key, left_ms
      end
      found[n + 1], found[n + 2] = key, has_end and kind .. "!" or kind
      found[n + 3] = cmsgpack.pack(READERS[kind](key))
    elseif kind == "none" and kinds[key] then
      found[n + 1], found[n + 2], found[n + 3] = key, "", ""
    end
  end
  return found, renewed
end

local function undo()
  if #touched > 0 then call("UNLINK", unpack(touched)) end
  for _, key in ipairs(touched) do
    if kinds[key] then restore(key) end
  end
  touched, events = {}, {}
end

--- One call: the state, then its steps.
local function explore(_, ARGV)
  asked, at = ARGV, 0
  kinds, contents, touched, events, covered = {}, {}, {}, {}, {}
  for number in pairs(at_load) do covered[number] = true end
  READS, KNOWN = READS or setOf(READING), KNOWN or setOf(NAMES)
  for _ = 1, tonumber(word()) do
    local key = word()
    kinds[key], contents[key] = word(), word()
  end
  local gone, lacking = words(), words()
  if #gone > 0 then call("UNLINK", unpack(gone)) end
  for _, key in ipairs(lacking) do restore(key) end

  local results = {}
  for i = 1, tonumber(word()) do
    local name = word()
    scripts[name] = scripts[name] or serve(calls[name])
    local script = scripts[name]
    clock = word()
    local keys, arguments = words(), words()
    local is_fine, reply = pcall(script, keys, arguments)
    if is_fine then
      if reply == nil then reply = false end
      local found, renewed = changes()
      results[i] = { found, events, reply, renewed }
    else
      results[i] = type(reply) == "table" and reply.err or tostring(reply)
    end
    undo()
  end
  local lines = {}
  for number in pairs(covered) do lines[#lines + 1] = number end
  return { results, lines }
end

server().register_function("explore", explore)
