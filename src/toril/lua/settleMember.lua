#!lua flags=allow-oom
--[[
  settleMember: a person says how a member ended of which nobody knows it.

  Keys      base (of the queue that owns the group), group (record), members, plan
  Args      request str (so that the same call, sent again, is known), member str (the id or the name of
            the job), state str ("completed" or "failed")
            After the map, raw: the return value as JSON, or the reason.
  Returns   0
  Refuses   -1    there is no such member, or several have the name        JobNotFoundError
            -131  there is no such group                                  GroupNotFoundError
            -132  how it ended is known, or may still be found out        InvalidGroupStateError
  Emits     group:completed, group:compensating, group:failed, removed, added, waiting
  Keeps     G1, G2, G3
  Cost      O(members)
]]
local base, group, members, plan = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
local value = ARGV[2]
--- @include "includes/groups"

local known = readGroup(group)
if not known then return -131 end
if redis.call("HGET", group, "x.request") == a.request then return 0 end

local found, count = nil, 0
local planned = redis.call("HGETALL", plan) -- bounded: members of a group
for i = 1, #planned, 2 do
  local member = string.match(planned[i], "^%d+$") and cmsgpack.unpack(planned[i + 1])
  local id = member and not member[5] and string.match(member[1], "([^:]+)$")
  if id and (id == a.member or member[2] == a.member) then
    found, count = { number = planned[i], job = member[1], kind = member[4], id = id }, count + 1
  end
end
if count ~= 1 then return -1 end
local field = "x.seek." .. found.job
if redis.call("HGET", group, field) ~= "" or redis.call("HGET", members, found.job) ~= "pending" then
  return -132
end
redis.call("HSET", group, "x.request", a.request)
redis.call("HDEL", group, field, "x.asks")
redis.call("ZREM", askingGroups(base), known.id)
memberEnded(group, found.kind, found.number, found.job, a.state,
  { id = found.id, value = value, started = true, is_open = false }, clock())
return 0
