--[[
  retryGroup: run the members that block a group again.

  They are created again, as if they had never run, as soon as those they wait for have completed.

  Keys      base (of the queue that owns the group), group (record), members, plan
  Args      request str (recognizes the same call if it is sent again)
  Returns   how many are tried again, or the group's state
  Refuses   NO_GROUP            there is no such group   GroupNotFoundError
  Emits     group:retrying, removed, added, waiting
  Keeps     I1, G1, G2, G3
  Flags     allow-oom
  Cost      O(members)
]]
local LISTED_AT_MOST = 100000

--- Remove every trace of a job that failed.
local function removeJob(group, number, member, budget)
  local job = member[1]
  local base, id = string.match(job, "^(.+):([^:]+)$")
  stages.removeLetter(group, "x.letter.m" .. number, nil, budget)
  if parcels.isAway(job) then
    remotes.remove(group .. ":" .. member[4] .. number, job)
    return
  end
  if redis.call("EXISTS", job) == 0 then return end
  journal.emit(queues.at(base), "removed", "jobId", id, "prev", places.takeOut(queues.at(base), id))
  redis.call("DEL", job .. ":lock")
  jobs.delete(job)
end

function calls.retryGroup(KEYS, a, ARGV)
  local base, group, members_, plan = unpack(KEYS)
  local queue = queues.at(base)
  local answer = requests.answerTo(queue, a.request)
  if answer then return tonumber(answer) end
  local known = groups.read(group)
  if not known then return refusals.NO_GROUP end
  if known.state ~= "BLOCKED" then return known.state end

  local now, count, budget, written = clock.now(), 0, { left = LISTED_AT_MOST }, {}
  for number, member in pairs(stages.plan(known).members) do
    local status = not member[5] and redis.call("HGET", members_, member[1])
    if status == "failed" or status == "cancelled" then
      removeJob(group, number, member, budget)
      written[#written + 1], written[#written + 2] = member[1], "planned"
      redis.call("HDEL", group .. ":results", number .. ".at", number .. ".why", number .. ".request")
      count = count + 1
    end
  end
  if count > 0 then redis.call("HSET", members_, unpack(written)) end
  redis.call("HSET", group, "failedCount", "0", "cancelledCount", "0")
  requests.remember(queue, a.request, clock.digits(count))
  known.failed, known.cancelled = 0, 0
  stages.unblock(known, now)
  groups.emit(known, "group:retrying", "count", clock.digits(count))
  stages.log(known, now, "retrying")
  stages.advanceAll(known, now)
  return count
end
