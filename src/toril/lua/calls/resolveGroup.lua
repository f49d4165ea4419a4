--[[
  resolveGroup: somebody has undone by hand what could not be undone; the group has failed in order.

  Keys      base (of the queue that owns the group), group (record)
  Args      request str (so that the same call, sent again, is known), note str
  Returns   the state before
  Refuses   NO_GROUP            there is no such group   GroupNotFoundError
  Emits     group:resolved
  Keeps     G1, G3
  Flags     allow-oom
  Cost      O(1)
]]
function calls.resolveGroup(KEYS, a, ARGV)
  local base, group = unpack(KEYS)
  local known = groups.read(group)
  if not known then return refusals.NO_GROUP end
  if redis.call("HGET", group, "x.request") == a.request then return "FAILED_COMPENSATION" end
  if known.state ~= "FAILED_COMPENSATION" then return known.state end
  local now = clock.now()
  redis.call("HSET", group, "state", "FAILED", "updatedAt", now, "x.note", a.note, "x.request",
    a.request)
  redis.call("ZREM", groups.asking(base), known.id)
  redis.call("UNLINK", group .. ":undo", group .. ":results")
  groups.emit(known, "group:resolved", "note", a.note)
  groups.close(known, now)
  return "FAILED_COMPENSATION"
end
