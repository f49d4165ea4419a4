#!lua flags=allow-oom
--[[
  reconcileGroups: settle the jobs of groups whose end nobody reported, and cancel groups whose time
  is up.

  A worker of another make ends a job without knowing of groups, and other tools remove jobs. So every
  open group is looked at from time to time: what the finished sets say of its jobs is what counts.
  Of a job that is gone only the events can tell how it ended; if they do not, it has failed, and is
  undone all the same: it may have done its work.

  Keys      base (of the queue that owns the groups), open
  Args      most int (jobs to look at), everything bool (not only what is due), skip int,
            look_again_ms int
  Returns   how many jobs were settled, whether there is more (0 or 1), how many groups to skip then,
            in how many ms a group is due (-1 for none)
  Emits     group:completed, group:compensating, group:failed, removed, added, waiting
  Keeps     G1, G2, G3
  Cost      O(most + the largest group), and the last thousand events of a queue from which jobs are gone
]]
local base, open = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/groups"
--- @include "includes/openEnd"

local now = clock()
local looked, settled, stayed = 0, 0, 0

--- What the last events of a queue tell of its jobs, by their ids.
local told = {}
local function lastEvents(queue_base)
  if told[queue_base] then return told[queue_base] end
  local ends = {}
  told[queue_base] = ends
  local entries = redis.call("XREVRANGE", queue_base .. ":events", "+", "-", "COUNT", 1000)
  for _, entry in ipairs(entries) do
    local event = {}
    for i = 1, #entry[2], 2 do
      event[entry[2][i]] = entry[2][i + 1]
    end
    local known = event.jobId and (ends[event.jobId] or {})
    if known then
      ends[event.jobId] = known
      if event.event == "active" then known.started = true end
      if not known.state and event.event == "completed" then
        known.state, known.value = "completed", event.returnvalue
      elseif not known.state and event.event == "failed" then
        known.state, known.value = "failed", event.failedReason
      elseif not known.state and event.event == "removed" then
        known.state, known.value = "cancelled", "removed"
      end
    end
  end
  return ends
end

local STALLED = "job stalled more than allowable limit"

--- How a job ended, if it did: { state, value, at, started, is_open }.
local function endOf(job)
  looked = looked + 1
  local queue_base, id = string.match(job, "^(.+):([^:]+)$")
  local hash = redis.call("HMGET", job, "name", "finishedOn", "returnvalue", "failedReason", "ats",
    "x.lost", "defa")
  if not hash[1] then
    local known = lastEvents(queue_base)[id] or { started = true }
    return { id = id, state = known.state or "failed", at = 0, started = known.started,
      is_open = not known.state or known.value == STALLED,
      value = known.value or "it is gone, and nobody knows how it ended" }
  end
  if not hash[2] then return nil end
  if redis.call("ZSCORE", queue_base .. ":completed", id) then
    return { id = id, state = "completed", value = hash[3] or "null", at = tonumber(hash[2]) }
  end
  if redis.call("ZSCORE", queue_base .. ":failed", id) then
    local is_open = hash[4] == STALLED or isOpenEnd(hash[5], hash[6], hash[7])
    return { id = id, state = "failed", value = hash[4] or "", at = tonumber(hash[2]), started = true,
      is_open = is_open }
  end
end

--- Those of a group's jobs that ended unnoticed, in the order in which they did.
local function unnoticed(key, suffix)
  local found = {}
  local statuses = redis.call("HGETALL", key .. suffix) -- bounded: members of a group
  for i = 1, #statuses, 2 do
    local ended = statuses[i + 1] == "pending" and endOf(statuses[i])
    if ended then
      ended.job = statuses[i]
      found[#found + 1] = ended
    end
  end
  table.sort(found, function(one, other) return one.at < other.at end)
  return found
end

--- The members' numbers and kinds by their keys, in case their own hashes are gone.
local function memberships(key)
  local by_job = {}
  local plan = redis.call("HGETALL", key .. ":plan") -- bounded: members of a group
  for i = 1, #plan, 2 do
    if string.match(plan[i], "^%d+$") then
      local member = cmsgpack.unpack(plan[i + 1])
      local is_earlier_run = member[5]
      if not is_earlier_run then by_job[member[1]] = { kind = member[4], number = plan[i] } end
    end
  end
  return by_job
end

local function reconcile(key)
  local members = unnoticed(key, ":jobs")
  local by_job = #members > 0 and memberships(key)
  for _, ended in ipairs(members) do
    local member = by_job[ended.job]
    memberEnded(key, member.kind, member.number, ended.job, ended.state, ended, now)
  end
  local undone = unnoticed(key, ":compensations")
  for _, ended in ipairs(undone) do
    local number = string.match(ended.job, "(%d+)$")
    compensationEnded(key, number, ended.job, ended.state, nil, now)
  end
  settled = settled + #members + #undone
end

--- BullMQ's `removeOrphanedJobs` takes `groups` and `compensation` for jobs, and deletes what it knows
--- below them, unless `de` names them. An index that it deleted is built again.
local function keepFromOrphans()
  local words = {}
  if redis.call("EXISTS", base .. ":compensation:meta") == 1 then words[1] = "compensation" end
  if redis.call("EXISTS", base .. ":groups", open, endedGroups(base)) > 0 then
    words[#words + 1] = "groups"
  end
  if #words > 0 and redis.call("SADD", base .. ":de", unpack(words)) > 0 then
    for _, group_id in ipairs(redis.call("ZREVRANGE", endedGroups(base), 0, 999)) do
      local created_at = redis.call("HGET", base .. ":groups:" .. group_id, "createdAt")
      if created_at then redis.call("ZADD", base .. ":groups", "NX", created_at, group_id) end
    end
  end
end

keepFromOrphans()
local ids
if a.everything then
  ids = redis.call("ZRANGE", open, a.skip, a.skip + 99)
else
  ids = redis.call("ZRANGEBYSCORE", open, "-inf", now, "LIMIT", 0, 100)
end
local done = 0
for _, id in ipairs(ids) do
  if looked >= a.most then break end
  done = done + 1
  local key = base .. ":groups:" .. id
  reconcile(key)
  local state = redis.call("HMGET", key, "state", "x.deadline", "createdAt")
  -- Of an index that BullMQ deleted while nothing kept it from that.
  local created = string.match(state[3] or "", "^%d+$")
  if state[1] and created then redis.call("ZADD", base .. ":groups", "NX", created, id) end
  local deadline = state[1] == "ACTIVE" and tonumber(state[2])
  local group = deadline and deadline <= now and readGroup(key)
  if group then
    turnGroup(group, { id = "", reason = "timeout" }, now)
    settled = settled + 1
  end
  if not state[1] then
    redis.call("ZREM", open, id)
  elseif redis.call("ZSCORE", open, id) then
    stayed = stayed + 1
    local due = now + a.look_again_ms
    if deadline and deadline > now then due = math.min(due, deadline) end
    if not a.everything then redis.call("ZADD", open, due, id) end
  end
end

local first = redis.call("ZRANGE", open, 0, 0, "WITHSCORES")
local wait_ms = -1
if first[2] then wait_ms = math.max(0, tonumber(first[2]) - now) end
local more = (done < #ids or #ids == 100) and 1 or 0
return { settled, more, stayed, wait_ms }
