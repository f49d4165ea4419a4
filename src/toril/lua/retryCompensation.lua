#!lua flags=allow-oom
--[[
  retryCompensation: try once more to undo what could not be undone.

  The compensation jobs that failed are made anew, as if they had never run; those that completed are
  left alone.

  Keys      base (of the queue that owns the group), group (record), open
  Args      request str (so that the same call, sent again, is known), look_again_ms int
  Returns   how many are tried again, or the state that the group is in
  Refuses   -131  there is no such group                                  GroupNotFoundError
  Emits     group:retrying, added, waiting
  Keeps     I1, G1, G2, G3
  Cost      O(members)
]]
local base, group, open = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/groups"
--- @include "includes/takeOut"

local known = readGroup(group)
if not known then return -131 end
local last = redis.call("HMGET", group, "x.request", "x.retried")
if last[1] == a.request then return tonumber(last[2]) end
if known.state ~= "FAILED_COMPENSATION" then return known.state end

local compensations, tried = group .. ":compensations", group .. ":tried"
local by_number = {}
local statuses = redis.call("HGETALL", compensations) -- bounded: members of a group
for i = 1, #statuses, 2 do
  if statuses[i + 1] ~= "completed" then
    by_number[string.match(statuses[i], "(%d+)$")] = statuses[i]
  end
end

--- The last in the list is the first to be undone in reverse order: what was tried first.
local now, numbers = clock(), {}
local order = redis.call("LRANGE", tried, 0, -1) -- bounded: members of a group
for i = #order, 1, -1 do
  local job = by_number[order[i]]
  if job then
    local queue_base, id = string.match(job, "^(.+):([^:]+)$")
    takeOut(queueAt(queue_base), id)
    redis.call("DEL", job .. ":lock")
    deleteJob(job)
    redis.call("HDEL", compensations, job)
    numbers[#numbers + 1] = order[i]
  end
end
redis.call("DEL", tried)
redis.call("RPUSH", group .. ":undo", unpack(numbers))
redis.call("HSET", group, "state", "COMPENSATING", "updatedAt", now, "x.broken", 0, "x.request",
  a.request, "x.retried", #numbers)
redis.call("ZADD", open, now + a.look_again_ms, known.id)
known.state, known.broken = "COMPENSATING", 0
emitGroup(known, "group:retrying", "count", #numbers)
settleGroup(known, now)
return #numbers
