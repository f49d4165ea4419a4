--[[
  resolveGroup: somebody has fixed by hand what could not be undone: the group has failed cleanly;
  or what could not be done: the group continues as if it had been.

  Keys      base (of the queue that owns the group), group (record)
  Args      request str (recognizes the same call if it is sent again), note str
  Returns   the previous state
  Refuses   NO_GROUP            there is no such group   GroupNotFoundError
  Emits     group:resolved, group:completed, added, waiting
  Keeps     G1, G3
  Flags     allow-oom
  Cost      O(members)
]]
function calls.resolveGroup(KEYS, a, ARGV)
  local base, group = unpack(KEYS)
  local queue = queues.at(base)
  if requests.wasMade(queue, a.request) then return "FAILED_COMPENSATION" end
  local known = groups.read(group)
  if not known then return refusals.NO_GROUP end
  local now = clock.now()
  if known.state == "BLOCKED" then
    requests.remember(queue, a.request)
    redis.call("HSET", group, "x.note", a.note)
    stages.log(known, now, "resolved", "", a.note)
    groups.emit(known, "group:resolved", "note", a.note)
    stages.skipFailed(known, now)
    return "BLOCKED"
  end
  if known.state ~= "FAILED_COMPENSATION" then return known.state end
  requests.remember(queue, a.request)
  stages.log(known, now, "resolved", "", a.note)
  redis.call("HSET", group, "state", "FAILED", "updatedAt", now, "x.note", a.note)
  redis.call("ZREM", groups.asking(base), known.id)
  redis.call("HDEL", group, "x.asks")
  redis.call("UNLINK", group .. ":undo", group .. ":stage", group .. ":signals", group .. ":retreat")
  groups.emit(known, "group:resolved", "note", a.note)
  groups.close(known, now)
  return "FAILED_COMPENSATION"
end
