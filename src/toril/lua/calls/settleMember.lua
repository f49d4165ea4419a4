--[[
  settleMember: a person or another system says how a member ended: a signal, a member that blocks its
  group, or one whose outcome nobody knows.

  A signal may be reported before its turn; it ends when its turn comes.

  Keys      base (of the queue that owns the group), group (record), members, plan
  Args      request str (recognizes the same call if it is sent again), member str (its key, its name or
            the id of its job), state str ("completed" or "failed")
            After the map, raw: the return value as JSON, or the reason.
  Returns   0; or the last refusal with the state of the group and the status of the member
  Refuses   MISSING             there is no such member, or several have the name   JobNotFoundError
            NO_GROUP            there is no such group   GroupNotFoundError
            WRONG_GROUP_STATE   nobody asks how it ended   InvalidGroupStateError
  Emits     group:completed, group:compensating, group:failed, group:blocked, removed, added, waiting
  Keeps     G1, G2, G3
  Flags     allow-oom
  Cost      O(members)
]]
--- The member that is meant: by its key or its job's id, else by its name if no other member has it.
local function findMember(plan, wanted)
  local found, named, count = nil, nil, 0
  local flat = redis.call("HGETALL", plan) -- bounded: members of a group
  for i = 1, #flat, 2 do
    local member = string.match(flat[i], "^%d+$") and cmsgpack.unpack(flat[i + 1])
    if member and not member[5] then
      local one = { number = flat[i], job = member[1], kind = member[4], id = string.match(member[1], "([^:]+)$") }
      if one.id == wanted or member[6] == wanted then found = one end
      if member[2] == wanted then named, count = one, count + 1 end
    end
  end
  return found or count == 1 and named or nil
end

--- Recognize this call if it is sent again. The group may have ended with it, and be forgotten at once.
local function rememberCall(queue, group, one, request)
  if redis.call("EXISTS", group) == 1 then
    redis.call("HSET", group .. ":results", one.number .. ".request", request)
  else
    requests.remember(queue, request)
  end
end

function calls.settleMember(KEYS, a, ARGV)
  local base, group, members_, plan = unpack(KEYS)
  local value = ARGV[2]
  local queue, known = queues.at(base), groups.read(group)
  if not known then return requests.wasMade(queue, a.request) and 0 or refusals.NO_GROUP end
  local one = findMember(plan, a.member)
  if not one then return refusals.MISSING end
  local seek = "x.seek." .. one.job
  local told_by = redis.call("HGET", group .. ":results", one.number .. ".request")
  if told_by == a.request then return 0 end

  local status, now = redis.call("HGET", members_, one.job), clock.now()
  local is_open = known.state == "ACTIVE" or known.state == "BLOCKED"
  local ended = { id = one.id, value = value, started = true, is_open = false }
  if one.kind == "s" and is_open and (status == "planned" or status == "awaited") then
    if not stages.tellSignal(known, one, status, a.state, value, now) then
      return { refusals.WRONG_GROUP_STATE, known.state, "told" }
    end
  elseif is_open and status == "pending" and redis.call("HGET", group, seek) == "" then
    redis.call("HDEL", group, seek, "x.asks")
    if known.state == "ACTIVE" then redis.call("ZREM", groups.asking(base), known.id) end
    groups.memberEnded(group, one.kind, one.number, one.job, a.state, ended, now)
  elseif known.state == "BLOCKED" and (status == "failed" or status == "cancelled") then
    if not stages.overrule(known, one, status, a.state, ended, now) then
      return { refusals.WRONG_GROUP_STATE, known.state, status }
    end
  else
    return { refusals.WRONG_GROUP_STATE, known.state, status or "" }
  end
  rememberCall(queue, group, one, a.request)
  return 0
end
