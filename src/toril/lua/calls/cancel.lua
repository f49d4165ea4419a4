--[[
  cancel: stop a job, whether it waits or runs.

  A job that waits ends as failed. Finding it in a long list would block the server, so there it is
  only marked, and the worker that takes it fails it without running it. If a job is running, its
  worker gets a message; the mark stays on the job, so that it does not run again if that worker dies,
  returns it or retries it.

  Keys      base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, failed,
            marker, stalled, meta, id, events, repeat
  Args      id str, reason str, keep map? (its retention), long int (list), mail_ms int,
            call str (recognizes the same call if it is sent again)
  Returns   1 it has ended, 2 it will end when its turn comes, 3 its worker was told
  Refuses   MISSING             the job does not exist   JobNotFoundError
            NOT_IN_STATE        it is finished   JobNotInStateError
            SCHEDULED           it is the pending iteration of a scheduler   SchedulerOwnsJobError
  Emits     failed
  Keeps     I1, I2
  Flags     allow-oom
  Cost      O(long)
]]
function calls.cancel(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, failed, marker, stalled, meta, id, events, repeat_ = unpack(KEYS)
  local queue = queues.at(base)
  local answer = requests.answerTo(queue, a.call)
  if answer then return tonumber(answer) end
  local job = base .. ":" .. a.id
  local ending = jobs.readEnding(job)
  if not ending then return refusals.MISSING end
  if redis.call("ZSCORE", failed, a.id) or redis.call("ZSCORE", completed, a.id) then
    return refusals.NOT_IN_STATE
  end
  if schedules.isNextIteration(queue, a.id) then return refusals.SCHEDULED end

  local function done(code)
    requests.remember(queue, a.call, clock.digits(code))
    return code
  end

  local holder = redis.call("GET", job .. ":lock")
  if holder then
    redis.call("HSET", job, "x.cancel", a.reason, "defa", a.reason)
    local worker = string.match(holder, "^(.+):[^:]*$")
    if worker then
      local mailbox = base .. ":toril:mail-" .. worker
      redis.call("RPUSH", mailbox, cmsgpack.pack({ a.id, holder, a.reason }))
      redis.call("PEXPIRE", mailbox, a.mail_ms)
    end
    return done(3)
  end

  local function leavePlace()
    local place = ending.lane and lanes.pull(queue, ending.lane, a.id)
    if place then return place == "wait" and "waiting" or place end
    if redis.call("ZREM", delayed, a.id) == 1 then return "delayed" end
    if redis.call("ZREM", prioritized, a.id) == 1 then return "prioritized" end
    if redis.call("ZREM", waiting_children, a.id) == 1 then return "waiting-children" end
    if redis.call("LLEN", wait) + redis.call("LLEN", paused) > a.long then return nil end
    if redis.call("LREM", wait, 1, a.id) == 1 then return "waiting" end
    if redis.call("LREM", paused, 1, a.id) == 1 then return "waiting" end
  end

  local previous = leavePlace()
  if not previous then
    redis.call("HSET", job, "defa", a.reason)
    return done(2)
  end
  local gate = gates.read(queue)
  journal.trimWithNext(queue, gate)
  jobs.finish(queue, gate, { id = a.id, state = "failed", value = a.reason, keep = a.keep,
    previous = previous }, ending, nil, clock.now())
  return done(1)
end
