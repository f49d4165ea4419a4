--[[
  eraseKeys: erase what is left of a paused queue that has no more jobs, a slice of the server's
  keys at a time; `meta`, which says that it is paused, goes last.

  What the queue has for queues in other slots is in no other place, so it is not erased before it is
  delivered. Whoever forces it leaves that to couriers, but not what its targets refuse for ever.

  Keys of the queue `<name>:compensation`, and of a queue whose prefix is this queue's name, begin
  like ours. So a key is erased only if its name is one that this queue uses. How many partitions
  the queue of the same name has is theirs, and stays.

  Keys      base, meta, parcels, parcels_due, in_transit, refused
  Args      cursor str ("0" to begin), slice int, leaves_parcels bool? (those that are due),
            resend bool? (the last slice may be done, and its reply lost)
  Returns   the next cursor ("0" when done), how many keys were erased
  Refuses   NOT_PAUSED          the queue is not paused   NotPausedError
            PARCELS_LEFT        parcels are not delivered   NotDeliveredError
  Flags     allow-oom
  Cost      O(slice)
]]
local FAMILIES = { de = true, dn = true, ["repeat"] = true, metrics = true, toril = true,
  groups = true, lanes = true, lane = true }
local PARTS = { lock = "string", logs = "list", dependencies = "set", processed = "hash",
  failed = "hash", unsuccessful = "zset" }

function calls.eraseKeys(KEYS, a, ARGV)
  local base, meta, parcels_, parcels_due, in_transit, refused = unpack(KEYS)
  if redis.call("HEXISTS", meta, "paused") == 0 then
    local is_done = a.resend
      and (redis.call("EXISTS", meta) == 0 or redis.call("HEXISTS", meta, "x.erased") == 1)
    return is_done and { "0", 0 } or refusals.NOT_PAUSED
  end
  if not a.leaves_parcels and redis.call("EXISTS", parcels_) == 1 then return refusals.PARCELS_LEFT end

  local function isOurs(key)
    local rest = string.sub(key, #base + 2)
    local first, part = string.match(rest, "^([^:]*):(.*)$")
    if not first then return true end
    if FAMILIES[first] then return true end
    return PARTS[part] ~= nil and redis.call("TYPE", key).ok == PARTS[part]
  end

  local comes_last = { [meta] = true, [parcels_] = true, [parcels_due] = true, [in_transit] = true,
    [refused] = true }
  local partitions = base .. ":toril:partitions"
  local pattern = string.gsub(base, "([%*%?%[%]\\%^])", "\\%1") .. ":*"
  local page = redis.call("SCAN", a.cursor, "MATCH", pattern, "COUNT", a.slice)
  local erased = 0
  for _, key in ipairs(page[2]) do
    if not comes_last[key] and key ~= partitions and isOurs(key) then
      erased = erased + redis.call("UNLINK", key)
    end
  end
  if page[1] == "0" then
    local are_left = a.leaves_parcels and redis.call("EXISTS", parcels_due) == 1
    erased = erased + redis.call("UNLINK", meta)
    if are_left then
      parcels.forget(base, redis.call("HRANDFIELD", refused, a.slice))
      gates.read(queues.at(base)) -- begins a new meta, by which the queue and its parcels are found
      redis.call("HSET", meta, "x.erased", "1") -- tells the last slice, sent again, from a queue resumed
    else
      erased = erased + redis.call("UNLINK", parcels_, parcels_due, in_transit, refused)
    end
  end
  return { page[1], erased }
end
