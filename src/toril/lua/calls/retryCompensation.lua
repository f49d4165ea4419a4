--[[
  retryCompensation: try once more to undo what could not be undone.

  The compensation jobs that failed are created again, as if they had never run; those that completed
  are left alone, and so are those that somebody retried and that have not ended yet. Dead letters of
  the recreated ones are removed if they are found quickly; those that stay cannot be replayed.

  Keys      base (of the queue that owns the group), group (record), open
  Args      request str (recognizes the same call if it is sent again)
  Returns   how many are tried again, or the group's state
  Refuses   NO_GROUP            there is no such group   GroupNotFoundError
  Emits     group:retrying, added, waiting
  Keeps     I1, G1, G2, G3
  Flags     allow-oom
  Cost      O(members)
]]
local LISTED_AT_MOST = 100000

local function isUnderWay(job)
  if parcels.isAway(job) then return false end
  local known = hashes.read(job, "name", "finishedOn")
  return known.name and not known.finishedOn
end

--- The compensations that have not completed, by the number of their member, and which of them are
--- still pending: they have exceeded their time limit, and continue.
local function unfinished(compensations)
  local by_number, is_pending = {}, {}
  local statuses = redis.call("HGETALL", compensations) -- bounded: members of a group
  for i = 1, #statuses, 2 do
    if statuses[i + 1] ~= "completed" then
      by_number[string.match(statuses[i], "(%d+)$")] = statuses[i]
      is_pending[statuses[i]] = statuses[i + 1] == "pending"
    end
  end
  return by_number, is_pending
end

local function removeCompensation(group, compensations, job, number)
  redis.call("HDEL", compensations, job)
  if parcels.isAway(job) then
    remotes.remove(group .. ":c" .. number, job)
    return
  end
  local queue_base, id = string.match(job, "^(.+):([^:]+)$")
  places.takeOut(queues.at(queue_base), id)
  redis.call("DEL", job .. ":lock")
  jobs.delete(job)
end

--- Clear away what failed. Returns the numbers to undo again, those that are still under way, and how
--- many of the latter the group had given up.
--- In reverse order the last in the list is undone first: the one that was tried first.
local function clearFailed(group)
  local compensations, tried = group .. ":compensations", group .. ":tried"
  local by_number, is_pending = unfinished(compensations)
  local numbers, under_way, revived, budget = {}, {}, 0, { left = LISTED_AT_MOST }
  local order = redis.call("LRANGE", tried, 0, -1) -- bounded: members of a group
  for i = #order, 1, -1 do
    local job = by_number[order[i]]
    if job and is_pending[job] then
      under_way[#under_way + 1] = order[i]
    elseif job and isUnderWay(job) then
      redis.call("HSET", compensations, job, "pending")
      under_way[#under_way + 1] = order[i]
      revived = revived + 1
    elseif job then
      stages.removeLetter(group, "x.letter." .. order[i], group .. ":c" .. order[i], budget)
      removeCompensation(group, compensations, job, order[i])
      numbers[#numbers + 1] = order[i]
    end
  end
  redis.call("DEL", tried)
  return numbers, under_way, revived
end

function calls.retryCompensation(KEYS, a, ARGV)
  local base, group, open = unpack(KEYS)
  local queue = queues.at(base)
  local answer = requests.answerTo(queue, a.request)
  if answer then return tonumber(answer) end
  local known = groups.read(group)
  if not known then return refusals.NO_GROUP end
  if known.state ~= "FAILED_COMPENSATION" then return known.state end

  local numbers, under_way, revived = clearFailed(group)
  if #under_way > 0 then
    redis.call("RPUSH", group .. ":tried", unpack(under_way))
    known.running = redis.call("HINCRBY", group, "x.running", clock.digits(revived))
  end
  if #numbers > 0 then redis.call("RPUSH", group .. ":undo", unpack(numbers)) end
  local now, count = clock.now(), #numbers + #under_way
  known.broken = 0
  redis.call("HSET", group, "x.broken", "0", "x.request", a.request)
  requests.remember(queue, a.request, clock.digits(count))
  groups.reopen(known, count, now)
  groups.settle(known, now)
  return count
end
