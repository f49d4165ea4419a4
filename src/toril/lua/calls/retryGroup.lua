--[[
  retryGroup: run the members that block a group again.

  They are created again, as if they had never run, as soon as those they wait for have completed. Those
  that a tool that does not know about groups has retried are not: the group waits for them, and one
  that has completed since counts as completed.

  Keys      base (of the queue that owns the group), group (record), members, plan
  Args      request str (recognizes the same call if it is sent again)
  Returns   how many run again, or the group's state
  Refuses   NO_GROUP            there is no such group   GroupNotFoundError
  Emits     group:retrying, group:completed, removed, added, waiting
  Keeps     I1, G1, G2, G3
  Flags     allow-oom
  Cost      O(members)
]]
local LISTED_AT_MOST = 100000

--- What became of a job that failed, if somebody retried it: "pending" while it has not ended, or how
--- it completed. Nothing if it is as its group knows it, or its id is somebody else's.
local function findRetried(membership, job)
  if parcels.isAway(job) then return nil end
  local known = hashes.tryRead(job, "x.group", "finishedOn", "defa")
  if known["x.group"] ~= membership then return nil end
  -- One that is doomed fails without being run.
  if not known.finishedOn then return not known.defa and "pending" or nil end
  local ended = endings.read(job)
  return ended and ended.state == "completed" and ended or nil
end

--- Remove every trace of a job that failed. Perhaps it failed because somebody else has its id.
local function removeJob(membership, job)
  local base, id = string.match(job, "^(.+):([^:]+)$")
  if parcels.isAway(job) then
    remotes.remove(membership, job)
    return
  end
  if redis.pcall("HGET", job, "x.group") ~= membership then return end
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

  local now, written, done = clock.now(), {}, {}
  local budget = { left = LISTED_AT_MOST }
  for number, member in pairs(stages.plan(known).members) do
    local job, membership = member[1], group .. ":" .. member[4] .. number
    local status = not member[5] and redis.call("HGET", members_, job)
    if status == "failed" or status == "cancelled" then
      stages.removeLetter(group, "x.letter.m" .. number, nil, budget)
      local retried = findRetried(membership, job)
      if not retried then removeJob(membership, job) end
      if type(retried) == "table" then done[#done + 1] = { number, member[4], job, retried } end
      written[#written + 1], written[#written + 2] = job, retried and "pending" or "planned"
      redis.call("HDEL", group .. ":results", number .. ".at", number .. ".why", number .. ".request")
      -- What was said of a signal before its turn was said of this one turn.
      redis.call("HDEL", group .. ":stage", number .. ".early")
    end
  end
  if #written > 0 then redis.call("HSET", members_, unpack(written)) end
  redis.call("HSET", group, "failedCount", "0", "cancelledCount", "0")
  local count = #written / 2 - #done
  requests.remember(queue, a.request, clock.digits(count))
  known.failed, known.cancelled = 0, 0
  groups.emit(known, "group:retrying", "count", clock.digits(count))
  stages.log(known, now, "retrying")
  stages.unblock(known, now)
  for _, one in ipairs(done) do
    groups.memberEnded(group, one[2], one[1], one[3], "completed", one[4], now)
  end
  stages.advanceAll(known, now)
  return count
end
