--[[
  retryCompensation: try once more to undo what could not be undone.

  The compensation jobs that failed are made anew, as if they had never run; those that completed are
  left alone, and so are those that somebody has let run again and that have not ended yet. Dead letters
  of those made anew are removed, as far as they are found quickly; those that stay cannot be replayed.

  Keys      base (of the queue that owns the group), group (record), open
  Args      request str (so that the same call, sent again, is known)
  Returns   how many are tried again, or the state that the group is in
  Refuses   NO_GROUP            there is no such group   GroupNotFoundError
  Emits     group:retrying, added, waiting
  Keeps     I1, G1, G2, G3
  Flags     allow-oom
  Cost      O(members)
]]
local LISTED_AT_MOST = 100000

local function isUnderWay(job)
  local known = hashes.read(job, "name", "finishedOn")
  return known.name and not known.finishedOn
end

--- The compensations that have not completed, by the number of their member.
local function unfinished(compensations)
  local by_number = {}
  local statuses = redis.call("HGETALL", compensations) -- bounded: members of a group
  for i = 1, #statuses, 2 do
    if statuses[i + 1] ~= "completed" then
      by_number[string.match(statuses[i], "(%d+)$")] = statuses[i]
    end
  end
  return by_number
end

--- Remove the dead letter of a compensation: replayed, it would undo a second time. `budget` is how long
--- the lists may be that are searched.
local function removeLetter(group, number, budget)
  local field = "x.letter." .. number
  local letter = redis.call("HGET", group, field)
  if not letter then return end
  redis.call("HDEL", group, field)
  local letter_base, id = string.match(letter, "^(.+):([^:]+)$")
  local queue = queues.at(letter_base)
  budget.left = budget.left - redis.call("LLEN", queue.wait) - redis.call("LLEN", queue.paused)
  local is_ours = redis.call("HGET", letter, "x.member") == group .. ":c" .. number
  if not is_ours or budget.left < 0 or redis.call("EXISTS", letter .. ":lock") == 1 then return end
  journal.emit(queue, "removed", "jobId", id, "prev", places.takeOut(queue, id))
  jobs.delete(letter)
end

local function removeCompensation(compensations, job)
  local queue_base, id = string.match(job, "^(.+):([^:]+)$")
  places.takeOut(queues.at(queue_base), id)
  redis.call("DEL", job .. ":lock")
  jobs.delete(job)
  redis.call("HDEL", compensations, job)
end

--- Clear away what failed. Returns the numbers to be undone anew, and those of what still runs.
--- The last in the list is the first to be undone in reverse order: what was tried first.
local function clearFailed(group)
  local compensations, tried = group .. ":compensations", group .. ":tried"
  local by_number, budget = unfinished(compensations), { left = LISTED_AT_MOST }
  local numbers, under_way = {}, {}
  local order = redis.call("LRANGE", tried, 0, -1) -- bounded: members of a group
  for i = #order, 1, -1 do
    local job = by_number[order[i]]
    if job and isUnderWay(job) then
      redis.call("HSET", compensations, job, "pending")
      under_way[#under_way + 1] = order[i]
    elseif job then
      removeLetter(group, order[i], budget)
      removeCompensation(compensations, job)
      numbers[#numbers + 1] = order[i]
    end
  end
  redis.call("DEL", tried)
  return numbers, under_way
end

function calls.retryCompensation(KEYS, a, ARGV)
  local base, group, open = unpack(KEYS)
  local known = groups.read(group)
  if not known then return refusals.NO_GROUP end
  local last = hashes.read(group, "x.request", "x.retried")
  if last["x.request"] == a.request then return tonumber(last["x.retried"]) end
  if known.state ~= "FAILED_COMPENSATION" then return known.state end

  local numbers, under_way = clearFailed(group)
  if #under_way > 0 then
    redis.call("RPUSH", group .. ":tried", unpack(under_way))
    known.running = redis.call("HINCRBY", group, "x.running", #under_way)
  end
  if #numbers > 0 then redis.call("RPUSH", group .. ":undo", unpack(numbers)) end
  local now, count = clock.now(), #numbers + #under_way
  known.broken = 0
  redis.call("HSET", group, "x.broken", "0", "x.request", a.request, "x.retried", clock.digits(count))
  groups.reopen(known, count, now)
  groups.settle(known, now)
  return count
end
