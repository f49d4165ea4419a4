--[[
  eraseKeys: erase what is left of a paused queue that has no more jobs, a slice of the server's
  keys at a time; `meta`, which says that it is paused, goes last.

  Keys of the queue `<name>:compensation`, and of a queue whose prefix is this queue's name, begin
  like ours. So a key is erased only if its name is one that this queue uses. How many partitions
  the queue of the same name has is theirs, and stays.

  Keys      base, meta
  Args      cursor str ("0" to begin), slice int, resend bool? (`meta` may have gone with a reply
            that was lost; then everything is done)
  Returns   the next cursor ("0" when done), how many keys were erased
  Refuses   NOT_PAUSED          the queue is not paused   NotPausedError
  Flags     allow-oom
  Cost      O(slice)
]]
local FAMILIES = { de = true, dn = true, ["repeat"] = true, metrics = true, toril = true,
  groups = true, lanes = true, lane = true }
local PARTS = { lock = "string", logs = "list", dependencies = "set", processed = "hash",
  failed = "hash", unsuccessful = "zset" }

function calls.eraseKeys(KEYS, a, ARGV)
  local base, meta = unpack(KEYS)
  if a.resend and redis.call("EXISTS", meta) == 0 then return { "0", 0 } end
  if redis.call("HEXISTS", meta, "paused") == 0 then return refusals.NOT_PAUSED end

  local function isOurs(key)
    local rest = string.sub(key, #base + 2)
    local first, part = string.match(rest, "^([^:]*):(.*)$")
    if not first then return true end
    if FAMILIES[first] then return true end
    return PARTS[part] ~= nil and redis.call("TYPE", key).ok == PARTS[part]
  end

  local partitions = base .. ":toril:partitions"
  local pattern = string.gsub(base, "([%*%?%[%]\\%^])", "\\%1") .. ":*"
  local page = redis.call("SCAN", a.cursor, "MATCH", pattern, "COUNT", a.slice)
  local erased = 0
  for _, key in ipairs(page[2]) do
    if key ~= meta and key ~= partitions and isOurs(key) then
      erased = erased + redis.call("UNLINK", key)
    end
  end
  if page[1] == "0" then
    erased = erased + redis.call("UNLINK", meta)
  end
  return { page[1], erased }
end
