--[[
  cancelGroup: start nothing more of an active group, and undo what is done.

  Keys      base (of the queue that owns the group), group (record)
  Args      request str (recognizes the same call if it is sent again), reason str
  Returns   the previous state: "ACTIVE" if this call cancelled it; "PAST_PIVOT" if there is no way back
  Refuses   NO_GROUP            there is no such group   GroupNotFoundError
  Emits     removed, added, waiting, group:compensating, group:failed
  Keeps     I1, G1, G2, G3
  Flags     allow-oom
  Cost      O(members)
]]
function calls.cancelGroup(KEYS, a, ARGV)
  local base, group = unpack(KEYS)
  local queue = queues.at(base)
  if requests.wasMade(queue, a.request) then return "ACTIVE" end
  local known = groups.read(group)
  if not known then return refusals.NO_GROUP end
  if known.state ~= "ACTIVE" then return known.state end
  if stages.isPastPivot(known) then return "PAST_PIVOT" end
  requests.remember(queue, a.request)
  groups.turn(known, { id = "", reason = a.reason }, clock.now())
  return "ACTIVE"
end
