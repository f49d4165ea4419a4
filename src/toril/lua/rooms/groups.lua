--- Groups (sagas): what happens to a group when a member, or a member's compensation, ends.
---
--- A job names its group in `x.group`: the key of the group's record, a colon, a letter and the
--- member's number. The letter is `m` for a member whose completion can be undone, `f` if its
--- failure is undone as well, `u` if there is nothing to undo, and `c` for the job that undoes.
---
--- Next to the record: `:jobs` how each member ended, `:plan` who they are and how each is undone,
--- `:undo` the numbers of what must be undone in the order of completion, `:results` their return
--- values, `:compensations` how each compensation ended, `:tried` their numbers in the order tried.
--- In the record, `x.letter.N` is the dead letter that the compensation of member N became.

local MOST_AT_ONCE = 250
--- Each one that ends causes a look at the whole group.
local MOST_IN_GRAPH = 20
local LOOK_AGAIN_MS = 30000
local MOST_TOLD = 500000

local function openGroups(owner) return owner .. ":toril:groups-open" end
function groups.ended(owner) return owner .. ":toril:groups-ended" end
--- The groups that need a person: undoing failed, or nobody knows how a member ended. Workers of older
--- versions do not write this index, so readers must verify it.
function groups.asking(owner) return owner .. ":toril:groups-asking" end
local function goneGroup(owner, id) return owner .. ":toril:groups-gone:" .. id end

--- A group; nothing if it is forgotten, or if its counts are damaged: then nobody can say how it
--- ends.
function groups.read(key)
  local record = hashes.read(key, "name", "state", "totalJobs", "completedCount", "failedCount",
    "cancelledCount", "x.running", "x.broken", "x.order", "x.late", "x.keep", "x.undo", "x.staged",
    "x.pivot", "x.undoMs", "x.ends", "x.asks")
  if not record.state then return nil end
  for _, count in ipairs({ "totalJobs", "completedCount", "failedCount", "cancelledCount" }) do
    if not string.find(record[count] or "", "^%d+$") then return nil end
  end
  local owner, id = string.match(key, "^(.*):groups:([^:]+)$")
  return {
    key = key, owner = owner, id = id, name = record.name, state = record.state,
    total = tonumber(record.totalJobs), completed = tonumber(record.completedCount),
    failed = tonumber(record.failedCount), cancelled = tonumber(record.cancelledCount),
    running = tonumber(record["x.running"]) or 0, -- compensation jobs that have not ended
    broken = tonumber(record["x.broken"]) or 0,  -- compensation jobs that failed for good
    -- Workers that do not know about graphs undo such a group in reverse order, which is also correct.
    is_reverse = record["x.order"] == "reverse" and record["x.undo"] ~= "graph",
    follows_graph = record["x.undo"] == "graph",
    undoes_late = record["x.late"] ~= "0",
    keep = record["x.keep"] and cmsgpack.unpack(record["x.keep"]),
    is_staged = record["x.staged"] ~= false,
    pivot = record["x.pivot"] or nil,
    undo_ms = tonumber(record["x.undoMs"]),
    has_ends = record["x.ends"] ~= false,
    asks = record["x.asks"]
  }
end

local function liveMembers(group)
  return group.total - group.completed - group.failed - group.cancelled
end

--- Does a member run that is undone if it completes? Then its group is not over.
local function isAwaited(group)
  return group.undoes_late and liveMembers(group) > 0
end

--- Is a group being undone, or was it until its time limit passed while members ran? In both they are
--- undone if they complete; in the second, as soon as a person says so.
local function isTurned(group)
  return group.state == "COMPENSATING" or group.state == "FAILED_COMPENSATION" and group.undoes_late
end

function groups.emit(group, event, ...)
  local most = redis.pcall("HGET", group.owner .. ":meta", "opts.maxLenEvents")
  most = type(most) == "string" and string.match(most, "^%d+$")
  redis.pcall("XADD", group.owner .. ":events", "MAXLEN", "~", most or 10000, "*", "event", event,
    "groupId", group.id, "groupName", group.name, ...)
end

function groups.delete(owner, id)
  local key = owner .. ":groups:" .. id
  redis.call("UNLINK", key, key .. ":jobs", key .. ":plan", key .. ":undo", key .. ":results",
    key .. ":compensations", key .. ":tried", key .. ":stage", key .. ":signals", key .. ":log",
    key .. ":retreat")
  redis.call("ZREM", owner .. ":groups", id)
  redis.call("ZREM", openGroups(owner), id)
  redis.call("ZREM", stages.index(owner), id)
  redis.call("ZREM", groups.ended(owner), id)
  redis.call("ZREM", groups.asking(owner), id)
end

local KNOWN_MS = "86400000"

--- How long it stays known how a group ended that is forgotten: a day, or what it asks for.
local function knownFor(key)
  local asked = redis.call("HGET", key, "x.remember")
  return asked and #asked < 16 and string.match(asked, "^%d+$") or KNOWN_MS
end

--- Forget a group that has ended. How it ended stays known for a while, for those who wait for it and
--- for a late call that would create it again.
function groups.forget(owner, id)
  local key, gone = owner .. ":groups:" .. id, goneGroup(owner, id)
  if redis.call("EXISTS", key) == 1 then
    redis.call("HDEL", key, "compensation", "x.keep")
    redis.call("RENAME", key, gone)
    redis.call("PEXPIRE", gone, knownFor(gone))
  end
  groups.delete(owner, id)
end

--- Forget finished groups as their retention asks, at most a hundred per call.
local function retainGroups(owner, keep, now)
  local ended = groups.ended(owner)
  local ids = {}
  if keep.age then
    ids = redis.call("ZRANGEBYSCORE", ended, "-inf", now - keep.age * 1000, "LIMIT", 0, 100)
  end
  if keep.count then
    local excess = math.min(redis.call("ZCARD", ended) - keep.count, 100)
    if excess > #ids then
      ids = redis.call("ZRANGE", ended, 0, excess - 1)
    end
  end
  for _, id in ipairs(ids) do
    groups.forget(owner, id)
  end
end

--- How the compensations ended, as JSON.
local function compensationResults(group)
  local ended = redis.call("HGETALL", group.key .. ":compensations") -- bounded: members of a group
  local results = {}
  for i = 1, #ended, 2 do
    local id = string.match(ended[i], "([^:]+)$")
    local number = string.match(id, "(%d+)$")
    local member = redis.call("HGET", group.key .. ":plan", number)
    local name = member and cmsgpack.unpack(member)[2] or ""
    results[#results + 1] = '{"jobId":' .. cjson.encode(id) .. ',"originalJobName":'
      .. cjson.encode(name) .. ',"status":"' .. ended[i + 1] .. '"}'
  end
  return "[" .. table.concat(results, ",") .. "]"
end

--- The group has nothing left to do: it may be forgotten.
function groups.close(group, now)
  redis.call("ZADD", groups.ended(group.owner), clock.stamp(now), group.id)
  if group.keep then retainGroups(group.owner, group.keep, now) end
end

local function endGroup(group, state, now)
  local was_asking = state == "FAILED" or group.state == "BLOCKED"
  group.state = state
  redis.call("HSET", group.key, "state", state, "updatedAt", clock.stamp(now))
  redis.call("ZREM", openGroups(group.owner), group.id)
  if group.is_staged then redis.call("ZREM", stages.index(group.owner), group.id) end
  if state ~= "FAILED_COMPENSATION" then
    redis.call("UNLINK", group.key .. ":undo", group.key .. ":stage", group.key .. ":signals",
      group.key .. ":retreat")
  end
  if group.has_ends then
    stages.announce(group, state == "COMPLETED" and "on_completed" or "on_failed", now)
  end
  if state == "COMPLETED" then
    groups.emit(group, "group:completed")
  else
    groups.emit(group, "group:failed", "state", state, "compensationResults",
      compensationResults(group))
  end
  -- A group that could not be undone is kept until somebody has looked at it.
  if state == "FAILED_COMPENSATION" then
    redis.call("ZADD", groups.asking(group.owner), clock.stamp(now), group.id)
    return
  end
  if was_asking then redis.call("ZREM", groups.asking(group.owner), group.id) end
  stages.askNoMore(group)
  groups.close(group, now)
end

--- The group has completed if all of its members have.
function groups.completeIfDone(group, now)
  if group.completed < group.total then return false end
  endGroup(group, "COMPLETED", now)
  return true
end

--- An id in the queue at `base` that no job has: somebody may already use the first choice. The number
--- is at its end, where it is read again.
local function freeId(base, head, number)
  local id, tries = head .. number, 0
  if parcels.isAway(base) then return id end
  while redis.call("EXISTS", base .. ":" .. id) == 1 do
    tries = tries + 1
    id = head .. tries .. "-" .. number
  end
  return id
end

--- The options of a job that undoes. The systems it calls recognize it by its membership, which stays
--- the same however often the job is created again.
local function undoOpts(opts, membership)
  return string.sub(opts, 1, -2) .. (opts == "{}" and "" or ",") .. '"idempotencyKey":'
    .. cjson.encode(membership) .. "}"
end

--- In reverse order, a failed compensation stops those after it: what was done earlier may be needed to
--- undo what came later.
local function isStopped(group)
  return group.is_reverse and group.broken > 0
end

--- The numbers of those that may be undone now. In reverse order that is one, and only when no member
--- that would be undone is still running: it could complete later than what is being undone.
local function takeUndoable(group)
  local most = group.is_reverse and 1 or group.follows_graph and MOST_IN_GRAPH or MOST_AT_ONCE
  local waits = group.is_reverse and isAwaited(group)
  if group.running >= most or waits or isStopped(group) then return nil end
  if group.follows_graph then return retreats.take(group, most - group.running) end
  return redis.call(group.is_reverse and "RPOP" or "LPOP", group.key .. ":undo", most - group.running)
end

--- What all jobs that undo are told: why, whose failure it was, and what the members returned, unless
--- that would be too long to give to `count` of them.
local function toldToUndo(group, count)
  local why = redis.call("HMGET", group.key, "x.reason", "x.failedMember")
  local label = why[2] and why[2] ~= "" and why[2]
  return ',"reason":' .. (why[1] and texts.quote(why[1]) or "null") .. ',"failedMember":'
    .. (label and texts.quote(label) or "null") .. ',"results":'
    .. stages.results(group, math.floor(MOST_TOLD / count))
end

--- The data of a job that undoes a member that returned `value`.
local function undoData(group, member, value, how, told)
  local id = string.match(member[1], "([^:]+)$")
  return '{"groupId":' .. cjson.encode(group.id) .. ',"originalJobName":' .. cjson.encode(member[2])
    .. ',"originalJobId":' .. cjson.encode(id) .. ',"originalReturnValue":' .. (value or "null")
    .. ',"compensationData":' .. how.data .. told .. "}"
end

--- Those that cannot be added wait until the next look at the group.
local function waitAgain(group, held)
  if #held == 0 then
    stages.askNoMore(group)
    return
  end
  group.way = nil
  redis.call("RPUSH", group.key .. ":undo", unpack(held))
end

--- Add the jobs that undo, as many as may be under way.
local function undoNext(group, now)
  local numbers = takeUndoable(group)
  if not numbers then return end
  local plan = group.key .. ":plan"
  local found_members = redis.call("HMGET", plan, unpack(numbers))
  local values = redis.call("HMGET", group.key .. ":results", unpack(numbers))
  local targets = cmsgpack.unpack(redis.call("HGET", plan, "targets"))
  local definitions, homes, told, written, tried, held = {}, {}, toldToUndo(group, #numbers), {}, {}, {}
  for i, number in ipairs(numbers) do
    local member = cmsgpack.unpack(found_members[i])
    local target = targets[string.match(member[1], "^(.+):[^:]+$")]
    local how = definitions[member[3]]
    if not how then
      how = cmsgpack.unpack(redis.call("HGET", plan, "c" .. member[3]))
      definitions[member[3]] = how
    end
    local placed = how.how or {}
    local new_id = freeId(target, group.id .. "-c", number)
    local membership = group.key .. ":c" .. number
    local why = stages.tryInsert(homes, target, { id = new_id, name = how.name, group = membership,
      lane = placed.lane, priority = placed.priority, delay = placed.delay },
      undoData(group, member, values[i], how, told), undoOpts(how.opts, membership), now, group.owner)
    if why then
      held[#held + 1] = number
      stages.askFor(group, how.name, target, why, now)
    else
      tried[#tried + 1] = number
      written[#written + 1], written[#written + 2] = target .. ":" .. new_id, "pending"
    end
  end
  waitAgain(group, held)
  if #tried == 0 then return end
  redis.call("HSET", group.key .. ":compensations", unpack(written))
  redis.call("RPUSH", group.key .. ":tried", unpack(tried))
  group.running = redis.call("HINCRBY", group.key, "x.running", #tried)
  stages.close(homes)
end

--- Is any part of a group still being undone or waited for?
local function isUnderWay(group)
  if group.running > 0 or group.undoes_late and liveMembers(group) > 0 then return true end
  -- What comes before a failed compensation waits until that is tried again.
  local is_stopped = (group.is_reverse or group.follows_graph) and group.broken > 0
  return not is_stopped and redis.call("EXISTS", group.key .. ":undo") == 1
end

--- A group that is being undone is over when none of it runs and nothing is left to undo.
function groups.settle(group, now)
  if group.state ~= "COMPENSATING" then return end
  undoNext(group, now)
  if isUnderWay(group) then
    retreats.remember(group)
    return
  end
  endGroup(group, group.broken > 0 and "FAILED_COMPENSATION" or "FAILED", now)
end

--- The pivot's last run has an unknown outcome: only a person can say whether there is a way back.
local function blockForPivot(group, id, now)
  stages.block(group, { id = id, reason = "nobody knows how it ended",
    label = stages.label(group.key, group.pivot) }, now)
end

--- The id of the pivot, if it is among these members that were cancelled and may have done its work.
local function findLostPivot(group, ends)
  for _, one in ipairs(ends) do
    if one.is_open and string.match(one.membership or "", "(%d+)$") == group.pivot then return one.id end
  end
  return nil
end

--- The same for those in one queue of this slot.
local function cancelHere(group, base, job_keys, released, reason)
  local cancelled, undone, ends = members.cancel(base, job_keys, released)
  if #cancelled > 0 then
    local written = {}
    for i, job in ipairs(cancelled) do
      written[2 * i - 1], written[2 * i] = job, "cancelled"
    end
    redis.call("HSET", group.key .. ":jobs", unpack(written))
    group.cancelled = redis.call("HINCRBY", group.key, "cancelledCount", #cancelled)
  end
  if #undone > 0 then redis.call("RPUSH", group.key .. ":undo", unpack(undone)) end
  if group.pivot then group.lost_pivot = group.lost_pivot or findLostPivot(group, ends) end
  if #cancelled < #job_keys then stages.tell(job_keys, reason) end
end

--- Cancel the members that nobody runs, and tell those that run.
local function cancelMembers(group, lock_keys, reason)
  local released = {}
  for _, lock in ipairs(lock_keys or {}) do
    released[lock] = true
  end
  local statuses = redis.call("HGETALL", group.key .. ":jobs") -- bounded: members of a group
  if group.is_staged then stages.cancelPlanned(group, statuses) end
  local by_queue = {}
  for i = 1, #statuses, 2 do
    if statuses[i + 1] == "pending" then
      local base = string.match(statuses[i], "^(.+):[^:]+$")
      local job_keys = by_queue[base] or {}
      by_queue[base] = job_keys
      job_keys[#job_keys + 1] = statuses[i]
    end
  end
  for base, job_keys in pairs(by_queue) do
    if parcels.isAway(base) then
      remotes.cancel(group, base, job_keys, reason)
    else
      cancelHere(group, base, job_keys, released, reason)
    end
  end
end

--- Undoing has a time limit.
local function limitUndoing(group, now)
  local at = clock.stamp(now + group.undo_ms)
  redis.call("HSET", group.key, "x.undoDeadline", at)
  redis.call("ZADD", stages.index(group.owner), "LT", at, group.id)
end

--- If undoing has exceeded its time limit, ask a person. What is under way continues. Returns 1 if so.
function groups.overdue(group, now)
  local at = group.undo_ms and tonumber(redis.call("HGET", group.key, "x.undoDeadline") or nil)
  if not at or at > now then return 0 end
  redis.call("HSET", group.key, "x.overdue", "1", "x.asks", "undoing was not done within its time limit")
  stages.log(group, now, "undoing takes too long")
  endGroup(group, "FAILED_COMPENSATION", now)
  return 1
end

--- An active group can no longer complete: cancel what has not started, undo what is done.
--- `cause` = { id, reason, label }: the job that failed, or "" for none.
function groups.turn(group, cause, now, released)
  cancelMembers(group, released, cause.reason)
  if group.lost_pivot then
    blockForPivot(group, group.lost_pivot, now)
    return
  end
  redis.call("HSET", group.key, "x.failedJobId", cause.id, "x.reason", cause.reason, "x.failedMember",
    cause.label or "")
  stages.log(group, now, "compensating", cause.label, cause.reason)
  if not isAwaited(group) and redis.call("EXISTS", group.key .. ":undo") == 0 then
    endGroup(group, "FAILED", now)
    return
  end
  group.state = "COMPENSATING"
  redis.call("HSET", group.key, "state", "COMPENSATING", "updatedAt", now)
  if group.undo_ms then limitUndoing(group, now) end
  groups.emit(group, "group:compensating", "failedJobId", cause.id, "reason", cause.reason)
  groups.settle(group, now)
end

--- Remember what a member returned, or why it did not, and when.
local function noteEnd(group, number, state, ended, now)
  if state == "completed" then
    redis.call("HSET", group.key .. ":results", number, ended.value, number .. ".at", clock.stamp(now))
  else
    redis.call("HSET", group.key .. ":results", number .. ".at", clock.stamp(now), number .. ".why", ended.value)
    if ended.letter and group.pivot then redis.call("HSET", group.key, "x.letter.m" .. number, ended.letter) end
  end
end

--- Must what this member did be undone if the group turns?
local function isUndone(group, kind, state, ended)
  if kind == "u" or kind == "s" then return false end
  if group.state ~= "ACTIVE" and not isTurned(group) then return false end
  if (state == "completed" or ended.is_open) and (group.state == "ACTIVE" or group.undoes_late) then
    return true
  end
  return state ~= "completed" and kind == "f" and ended.started
end

--- A member has ended in a group that is not being undone.
local function goOn(group, number, state, ended, now)
  if state ~= "completed" then
    local cause = { id = ended.id, reason = ended.value, label = stages.label(group.key, number) }
    local is_pivot, is_blocked = number == group.pivot, group.state == "BLOCKED"
    if stages.isPastPivot(group) or is_pivot and ended.is_open or is_blocked and not is_pivot then
      stages.block(group, cause, now)
    else
      -- A pivot of which nobody knew how it ended has run again, and failed.
      if is_blocked then stages.unblock(group, now) end
      groups.turn(group, cause, now, ended.released)
    end
    return
  end
  if number == group.pivot then redis.call("UNLINK", group.key .. ":undo") end
  if not groups.completeIfDone(group, now) and group.is_staged then
    stages.advance(group, number, now)
  end
end

--- A job has ended after the time limit of undoing: perhaps nothing is left to undo.
local function endedLate(group, now)
  if group.state ~= "FAILED_COMPENSATION" or group.running > 0 or group.broken > 0 then return end
  if isAwaited(group) or redis.call("EXISTS", group.key .. ":undo") == 1 then return end
  endGroup(group, "FAILED", now)
end

--- Look after a group again that could not be undone.
local function lookAfter(group, now)
  redis.call("HDEL", group.key, "x.overdue", "x.asks", "x.undoDeadline")
  redis.call("ZADD", openGroups(group.owner), clock.stamp(now + LOOK_AGAIN_MS), group.id)
  if group.is_staged then
    redis.call("ZADD", stages.index(group.owner), clock.stamp(now + LOOK_AGAIN_MS), group.id)
  end
end

--- The pivot has ended in a group that had turned. If it has completed, there is no way back any more; if
--- its outcome is open, perhaps not.
local function endPivotLate(group, state, ended, now)
  if group.state == "FAILED_COMPENSATION" then
    lookAfter(group, now)
    group.state = "COMPENSATING"
  end
  if state == "completed" then
    stages.keep(group, now)
  else
    blockForPivot(group, ended.id, now)
  end
end

--- A member ended: `state` is completed, failed or cancelled. `ended` = { id, value, started, is_open,
--- released }; the value is the return value or the reason. A member whose outcome is open may have done
--- its work, so it is undone as if it had completed, without a return value.
function groups.memberEnded(key, kind, number, job, state, ended, now)
  local status = redis.call("HGET", key .. ":jobs", job)
  if status ~= "pending" and status ~= "awaited" then return end
  local group = groups.read(key)
  if not group then return end
  retreats.recall(group)
  redis.call("HSET", key .. ":jobs", job, state)
  group[state] = redis.call("HINCRBY", key, state .. "Count", "1")
  noteEnd(group, number, state, ended, now)
  local is_undone = isUndone(group, kind, state, ended)
  if is_undone then redis.call("RPUSH", key .. ":undo", number) end
  retreats.memberEnded(group, number, status, is_undone)

  if group.state == "ACTIVE" or group.state == "BLOCKED" then
    goOn(group, number, state, ended, now)
  elseif isTurned(group) and number == group.pivot and (state == "completed" or ended.is_open) then
    endPivotLate(group, state, ended, now)
  else
    endedLate(group, now)
    groups.settle(group, now)
  end
end

--- Start undoing a group again that could not be undone; `count` compensations are tried again.
function groups.reopen(group, count, now)
  group.state = "COMPENSATING"
  redis.call("HSET", group.key, "state", "COMPENSATING", "updatedAt", clock.stamp(now))
  lookAfter(group, now)
  stages.log(group, now, "retrying")
  if group.undo_ms then limitUndoing(group, now) end
  redis.call("ZREM", groups.asking(group.owner), group.id)
  groups.emit(group, "group:retrying", "count", clock.digits(count))
end

--- A compensation that had failed has completed after all.
local function repaired(group, now)
  group.broken = redis.call("HINCRBY", group.key, "x.broken", "-1")
  if group.state ~= "FAILED_COMPENSATION" or group.broken > 0 then return end
  local left = redis.call("LLEN", group.key .. ":undo")
  if left > 0 then
    groups.reopen(group, left, now)
  else
    endedLate(group, now)
  end
end

--- A job that undoes a member ended; `letter` is the key of the dead letter that it became. If it
--- failed, and then completed when a BullMQ worker ran it again, it makes up for its failure.
function groups.compensationEnded(key, number, job, state, letter, now)
  local before = redis.call("HGET", key .. ":compensations", job)
  local is_repaired = before and before ~= "pending" and before ~= "completed" and state == "completed"
  if before ~= "pending" and not is_repaired then return end
  local group = groups.read(key)
  if not group then return end
  retreats.recall(group)
  redis.call("HSET", key .. ":compensations", job, state)
  redis.call("HSET", key .. ":results", "c" .. number .. ".at", clock.stamp(now))
  if letter then redis.call("HSET", key, "x.letter." .. number, letter) end
  if before == "pending" then
    group.running = redis.call("HINCRBY", key, "x.running", "-1")
  end
  if is_repaired then
    repaired(group, now)
  elseif state ~= "completed" then
    group.broken = redis.call("HINCRBY", key, "x.broken", "1")
  else
    endedLate(group, now)
  end
  if state == "completed" then retreats.settled(group, number) end
  groups.settle(group, now)
end

--- A job that belongs to a group ended. Reporting the same end twice changes nothing.
function groups.onSettled(membership, job, state, ended, now)
  local key, kind, number = string.match(membership, "^(.*):(%a)(%d+)$")
  if not key then return end
  if parcels.isAway(key) then
    remotes.ended(membership, job, state, ended)
  elseif kind == "c" then
    groups.compensationEnded(key, number, job, state, ended.letter, now)
  else
    groups.memberEnded(key, kind, number, job, state, ended, now)
  end
end

--- The job that undoes member `number`, and how it ended.
function groups.findCompensation(key, number)
  local ended = redis.call("HGETALL", key .. ":compensations") -- bounded: members of a group
  for i = 1, #ended, 2 do
    if string.match(ended[i], "(%d+)$") == number then return ended[i], ended[i + 1] end
  end
  return nil, nil
end

local function isBroken(status)
  return status ~= nil and status ~= false and status ~= "pending" and status ~= "completed"
end

--- The state of the group with this record. Anybody can write anything into a job: a key that is not a
--- group must not stop anybody else.
local function readState(key)
  local state = redis.pcall("HGET", key, "state")
  if type(state) == "table" then return "ACTIVE" end
  return state or "FORGOTTEN"
end

--- May a job of a group run, or run again? "ACTIVE" if it may, else the state of its group. Without a
--- record the group has been forgotten, so it has ended. A compensation may run until it has completed,
--- while its group is not over; `job` is its key, unless it is a dead letter now.
--- With `is_again` a member that its group counts as completed may not: it would be undone only once.
--- "SETTLED" is said of a dead letter whose group goes on without it.
--- Also returns whether the group is blocked, perhaps by this member.
function groups.stateOf(membership, job, is_again)
  local key, kind, number = string.match(membership, "^(.*):(%a)(%d+)$")
  if not key then return "ACTIVE" end
  if parcels.isAway(key) then return remotes.stateOf(job) end
  if kind ~= "c" then
    local state = readState(key)
    local is_blocked = state == "BLOCKED"
    if not job and (is_blocked or state == "ACTIVE") then
      return stages.mayRejoin(key, number, is_blocked) and "ACTIVE" or "SETTLED"
    end
    if is_blocked then state = "ACTIVE" end
    if state ~= "ACTIVE" or not is_again then return state, is_blocked end
    return redis.call("HGET", key .. ":jobs", job) == "completed" and "COMPLETED" or "ACTIVE", is_blocked
  end
  local status
  if job then
    status = redis.call("HGET", key .. ":compensations", job)
  else
    job, status = groups.findCompensation(key, number)
    if status == "pending" then return "COMPENSATING" end
  end
  if status == "pending" then return "ACTIVE" end
  local state = readState(key)
  local is_open = state == "COMPENSATING" or state == "FAILED_COMPENSATION"
  return is_open and isBroken(status) and "ACTIVE" or state
end

--- The compensation `before`, which failed, will run again as `job`: its group waits for it from now
--- on. Returns false, and changes nothing, if its group does not.
function groups.reviveCompensation(key, before, job, now)
  local group = before and isBroken(redis.call("HGET", key .. ":compensations", before))
    and groups.read(key)
  if not group or group.state ~= "COMPENSATING" and group.state ~= "FAILED_COMPENSATION" then
    return false
  end
  if before ~= job then redis.call("HDEL", key .. ":compensations", before) end
  redis.call("HSET", key .. ":compensations", job, "pending")
  redis.call("HINCRBY", key, "x.running", "1")
  redis.call("HINCRBY", key, "x.broken", "-1")
  if group.state == "FAILED_COMPENSATION" then groups.reopen(group, 1, now) end
  return true
end

--- A completed member will run once more in its active group. Its first run becomes an entry of its own
--- in the plan, so that both are undone.
local function repeatMember(key, number, job, now)
  local group = groups.read(key)
  if not group or group.state ~= "ACTIVE" and group.state ~= "BLOCKED" then return false end
  local status = redis.call("HGET", key .. ":jobs", job)
  if group.state == "BLOCKED" and (status == "failed" or status == "cancelled") then
    stages.revive(group, job, status, now)
    return true
  end
  if status ~= "completed" then return true end
  local first = clock.digits(group.total - 1 + redis.call("HINCRBY", key, "x.repeats", "1"))
  local member = cmsgpack.unpack(redis.call("HGET", key .. ":plan", number))
  member[5] = true
  redis.call("HSET", key .. ":plan", first, cmsgpack.pack(member))
  stages.forgetPlan(group)
  if redis.call("LINSERT", key .. ":undo", "BEFORE", number, first) > 0 then
    redis.call("LREM", key .. ":undo", "1", number)
    redis.call("HSET", key .. ":results", first, redis.call("HGET", key .. ":results", number) or "null")
  end
  -- If nobody learns how the second run ends, what undoes it must not be told what the first returned.
  redis.call("HDEL", key .. ":results", number, number .. ".at")
  redis.call("HSET", key .. ":jobs", job, "pending")
  redis.call("HINCRBY", key, "completedCount", "-1")
  return true
end

--- A job of a group starts that was started before, or whose group is blocked: a tool that does not know
--- about groups may have brought it back.
function groups.onTaken(membership, job, is_blocked, now)
  local key, kind = string.match(membership, "^(.*):(%a)%d+$")
  if kind == "c" and not parcels.isAway(key) then groups.reviveCompensation(key, job, job, now) end
  if not is_blocked then return end
  local status, group = redis.call("HGET", key .. ":jobs", job), groups.read(key)
  if group and (status == "failed" or status == "cancelled") then stages.revive(group, job, status, now) end
end

--- Somebody retries a finished job of a group. If the group does not wait for it, it runs only because
--- it is forced.
function groups.onRetried(membership, job, now)
  local key, kind, number = string.match(membership, "^(.*):(%a)(%d+)$")
  if not key then return end
  if parcels.isAway(key) then
    remotes.retried(membership, job)
    return
  end
  local is_counted
  if kind == "c" then
    is_counted = groups.reviveCompensation(key, job, job, now)
  else
    is_counted = repeatMember(key, number, job, now)
  end
  if not is_counted and not parcels.isAway(job) then redis.call("HSET", job, "x.forced", "1") end
end

--- Was this member cancelled while it waited in a list too long to search?
function groups.wasCancelled(membership, job, doom)
  if doom == members.CANCELLED then return true end
  local key, kind = string.match(membership, "^(.*):(%a)%d+$")
  return key ~= nil and not parcels.isAway(key) and kind ~= "c" and redis.call("HGET", key .. ":jobs", job) == "cancelled"
end
