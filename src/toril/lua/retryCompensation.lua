#!lua flags=allow-oom
--[[
  retryCompensation: try once more to undo what could not be undone.

  The compensation jobs that failed are made anew, as if they had never run; those that completed are
  left alone, and so are those that somebody has let run again and that have not ended yet. Dead letters
  of those made anew are removed, as far as they are found quickly; those that stay cannot be replayed.

  Keys      base (of the queue that owns the group), group (record), open
  Args      request str (so that the same call, sent again, is known)
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

local LISTED_AT_MOST = 100000
local searched = 0

--- Remove the dead letter of a compensation: replayed, it would undo a second time.
local function removeLetter(number)
  local field = "x.letter." .. number
  local letter = redis.call("HGET", group, field)
  if not letter then return end
  redis.call("HDEL", group, field)
  local letter_base, id = string.match(letter, "^(.+):([^:]+)$")
  local queue = queueAt(letter_base)
  searched = searched + redis.call("LLEN", queue.wait) + redis.call("LLEN", queue.paused)
  local is_ours = redis.call("HGET", letter, "x.member") == group .. ":c" .. number
  if not is_ours or searched > LISTED_AT_MOST or redis.call("EXISTS", letter .. ":lock") == 1 then
    return
  end
  emit(queue, "removed", "jobId", id, "prev", takeOut(queue, id))
  deleteJob(letter)
end

local function isUnderWay(job)
  local known = redis.call("HMGET", job, "name", "finishedOn")
  return known[1] and not known[2]
end

--- The last in the list is the first to be undone in reverse order: what was tried first.
local now, numbers, under_way = clock(), {}, {}
local order = redis.call("LRANGE", tried, 0, -1) -- bounded: members of a group
for i = #order, 1, -1 do
  local job = by_number[order[i]]
  if job and isUnderWay(job) then
    redis.call("HSET", compensations, job, "pending")
    under_way[#under_way + 1] = order[i]
  elseif job then
    removeLetter(order[i])
    local queue_base, id = string.match(job, "^(.+):([^:]+)$")
    takeOut(queueAt(queue_base), id)
    redis.call("DEL", job .. ":lock")
    deleteJob(job)
    redis.call("HDEL", compensations, job)
    numbers[#numbers + 1] = order[i]
  end
end
redis.call("DEL", tried)
if #under_way > 0 then
  redis.call("RPUSH", tried, unpack(under_way))
  known.running = redis.call("HINCRBY", group, "x.running", #under_way)
end
if #numbers > 0 then redis.call("RPUSH", group .. ":undo", unpack(numbers)) end
local count = #numbers + #under_way
known.broken = 0
redis.call("HSET", group, "x.broken", "0", "x.request", a.request, "x.retried", digits(count))
reopenGroup(known, count, now)
settleGroup(known, now)
return count
