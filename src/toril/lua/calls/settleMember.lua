--[[
  settleMember: a person says how a member ended of which nobody knows it.

  Keys      base (of the queue that owns the group), group (record), members, plan
  Args      request str (so that the same call, sent again, is known), member str (the id or the name of
            the job), state str ("completed" or "failed")
            After the map, raw: the return value as JSON, or the reason.
  Returns   0
  Refuses   MISSING             there is no such member, or several have the name   JobNotFoundError
            NO_GROUP            there is no such group   GroupNotFoundError
            WRONG_GROUP_STATE   how it ended is known, or may still be found out   InvalidGroupStateError
  Emits     group:completed, group:compensating, group:failed, removed, added, waiting
  Keeps     G1, G2, G3
  Flags     allow-oom
  Cost      O(members)
]]
function calls.settleMember(KEYS, a, ARGV)
  local base, group, members_, plan = unpack(KEYS)
  local value = ARGV[2]

  local known = groups.read(group)
  if not known then return refusals.NO_GROUP end
  if redis.call("HGET", group, "x.request") == a.request then return 0 end

  local found, count = nil, 0
  local planned = redis.call("HGETALL", plan) -- bounded: members_ of a group
  for i = 1, #planned, 2 do
    local member = string.match(planned[i], "^%d+$") and cmsgpack.unpack(planned[i + 1])
    local id = member and not member[5] and string.match(member[1], "([^:]+)$")
    if id and (id == a.member or member[2] == a.member) then
      found, count = { number = planned[i], job = member[1], kind = member[4], id = id }, count + 1
    end
  end
  if count ~= 1 then return refusals.MISSING end
  local field = "x.seek." .. found.job
  if redis.call("HGET", group, field) ~= "" or redis.call("HGET", members_, found.job) ~= "pending" then
    return refusals.WRONG_GROUP_STATE
  end
  redis.call("HSET", group, "x.request", a.request)
  redis.call("HDEL", group, field, "x.asks")
  redis.call("ZREM", groups.asking(base), known.id)
  groups.memberEnded(group, found.kind, found.number, found.job, a.state,
    { id = found.id, value = value, started = true, is_open = false }, clock.now())
  return 0
end
