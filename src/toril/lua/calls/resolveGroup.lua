--[[
  resolveGroup: somebody has fixed by hand what could not be undone: the group has failed cleanly;
  or what could not be done: the group continues as if it had been.

  Keys      base (of the queue that owns the group), group (record)
  Args      request str (recognizes the same call if it is sent again), note str,
            expected_state str?, expected_members list of keys? (what the caller was shown)
  Returns   the previous state; or CHANGED with the state and the keys of the members it is about now
  Refuses   CHANGED             it is not as expected    InvalidGroupStateError
            NO_GROUP            there is no such group   GroupNotFoundError
  Emits     group:resolved, group:completed, added, waiting
  Keeps     G1, G3
  Flags     allow-oom
  Cost      O(members)
]]
local function isBroken(status) return status == "failed" or status == "cancelled" end

--- The members that block a group.
local function findBlocking(group)
  local keys = {}
  for _, member in pairs(stages.plan(group).members) do
    if not member[5] and isBroken(redis.call("HGET", group.key .. ":jobs", member[1])) then
      keys[#keys + 1] = member[6] or member[2]
    end
  end
  return keys
end

--- The members whose undoing failed. One that cannot be read is left out, as it is by listGroup.
local function findNotUndone(group)
  local keys = {}
  local ended = redis.call("HGETALL", group.key .. ":compensations") -- bounded: members of a group
  for i = 1, #ended, 2 do
    if isBroken(ended[i + 1]) then
      local is_read, member = pcall(stages.member, group.key, string.match(ended[i], "(%d+)$"))
      local is_known = is_read and type(member) == "table"
      if is_known and not member[5] then keys[#keys + 1] = member[6] or member[2] end
    end
  end
  return keys
end

--- Is the group as the caller was shown it? `broken` are the keys of the members that it is about.
local function isAsExpected(group, broken, a)
  if a.expected_state and a.expected_state ~= group.state then return false end
  if not a.expected_members then return true end
  local is_expected = {}
  for _, key in ipairs(a.expected_members) do
    is_expected[key] = true
  end
  for _, key in ipairs(broken) do
    if not is_expected[key] then return false end
  end
  return #broken == #a.expected_members
end

function calls.resolveGroup(KEYS, a, ARGV)
  local base, group = unpack(KEYS)
  local queue = queues.at(base)
  if requests.wasMade(queue, a.request) then return "FAILED_COMPENSATION" end
  local known = groups.read(group)
  if not known then return refusals.NO_GROUP end
  local is_blocked = known.state == "BLOCKED"
  if not is_blocked and known.state ~= "FAILED_COMPENSATION" then return known.state end
  if a.expected_state or a.expected_members then
    local broken = is_blocked and findBlocking(known) or findNotUndone(known)
    if not isAsExpected(known, broken, a) then return { refusals.CHANGED, known.state, broken } end
  end
  local now = clock.now()
  if is_blocked then
    requests.remember(queue, a.request)
    redis.call("HSET", group, "x.note", a.note)
    stages.log(known, now, "resolved", "", a.note)
    groups.emit(known, "group:resolved", "note", a.note)
    stages.skipFailed(known, now)
    return "BLOCKED"
  end
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
