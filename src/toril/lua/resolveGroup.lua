#!lua flags=allow-oom
--[[
  resolveGroup: somebody has undone by hand what could not be undone; the group has failed in order.

  Keys      base (of the queue that owns the group), group (record)
  Args      request str (so that the same call, sent again, is known), note str
  Returns   the state before
  Refuses   -131  there is no such group                                  GroupNotFoundError
  Emits     group:resolved
  Keeps     G1, G3
  Cost      O(1)
]]
local base, group = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/groups"

local known = readGroup(group)
if not known then return -131 end
if redis.call("HGET", group, "x.request") == a.request then return "FAILED_COMPENSATION" end
if known.state ~= "FAILED_COMPENSATION" then return known.state end
local now = clock()
redis.call("HSET", group, "state", "FAILED", "updatedAt", now, "x.note", a.note, "x.request",
  a.request)
redis.call("ZREM", askingGroups(base), known.id)
redis.call("UNLINK", group .. ":undo", group .. ":results")
emitGroup(known, "group:resolved", "note", a.note)
closeGroup(known, now)
return "FAILED_COMPENSATION"
