--[[
  reconcileGroups: settle the jobs of groups whose end nobody reported, advance groups whose stages
  nobody opened, and enforce the time limits of groups and signals.

  Other workers (BullMQ's) end jobs without knowing about groups, and other tools remove jobs. So every
  open group is checked from time to time: what the finished sets say about its jobs is what counts.
  If a job is gone, only the events can tell how it ended. They are read back to the beginning of the
  group, in slices. If they do not tell, it has failed, and is undone anyway, because it may have done
  its work. If they do not reach back far enough, the group waits for a person.

  Keys      base (of the queue that owns the groups), open
  Args      most int (jobs to look at), everything bool (not just what is due), skip int,
            look_again_ms int
  Returns   how many jobs were settled, whether there is more (0 or 1), how many groups to skip next,
            in how many ms a group is due (-1 for none)
  Emits     group:completed, group:compensating, group:failed, group:blocked, removed, added, waiting
  Keeps     G1, G2, G3
  Flags     allow-oom
  Cost      O(most + the largest group), and three thousand events of queues from which jobs are gone
]]
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

--- How a job of this slot ended, if it did: { state, value, at, started, is_open }.
local function endOf(work, key, job)
  work.looked = work.looked + 1
  local ended, is_gone = endings.read(job)
  if not is_gone then return ended end
  local field = endings.placeField(job)
  local record = hashes.read(key, field, "createdAt", "state")
  local found = endings.search(work.events, job, record[field] or "+", tonumber(record.createdAt) or 0)
  if found.is_reading then work.is_reading = true end
  return endings.judge(key, job, record.state, found, work.now)
end

--- Note a job in another slot: its queue is asked.
local function noteAway(work, away, job)
  local base = string.match(job, "^(.+):[^:]+$")
  work.looked = work.looked + 1
  away[base] = away[base] or {}
  away[base][#away[base] + 1] = job
end

--- Those of a group's jobs that ended unnoticed, in the order in which they ended. `away` collects those
--- in other slots.
local function unnoticed(work, key, suffix, away)
  local found = {}
  local statuses = redis.call("HGETALL", key .. suffix) -- bounded: members of a group
  for i = 1, #statuses, 2 do
    local is_pending, ended = statuses[i + 1] == "pending", nil
    if is_pending and parcels.isAway(statuses[i]) then
      noteAway(work, away, statuses[i])
    elseif is_pending then
      ended = endOf(work, key, statuses[i])
    end
    if ended then
      ended.job = statuses[i]
      found[#found + 1] = ended
    end
  end
  table.sort(found, function(one, other) return one.at < other.at end)
  return found
end

--- Ask the queues of other slots about jobs of the group; `suffixOf` names their memberships.
local function seek(key, away, suffixOf)
  for base, job_keys in pairs(away) do
    local asked = {}
    for i, job in ipairs(job_keys) do
      local field = endings.placeField(job)
      asked[i] = { job, suffixOf(job), redis.call("HGET", key, field) or "+" }
    end
    remotes.seek(key, base, asked)
  end
end

local function reconcile(work, key)
  local away = {}
  local ended_members = unnoticed(work, key, ":jobs", away)
  if next(away) then
    local members_away = memberships(key)
    seek(key, away, function(job) return members_away[job].kind .. members_away[job].number end)
  end
  local by_job = #ended_members > 0 and memberships(key)
  for _, ended in ipairs(ended_members) do
    local member = by_job[ended.job]
    groups.memberEnded(key, member.kind, member.number, ended.job, ended.state, ended, work.now)
  end
  away = {}
  local undone = unnoticed(work, key, ":compensations", away)
  seek(key, away, function(job) return "c" .. string.match(job, "(%d+)$") end)
  for _, ended in ipairs(undone) do
    local number = string.match(ended.job, "(%d+)$")
    groups.compensationEnded(key, number, ended.job, ended.state, nil, work.now)
  end
  work.settled = work.settled + #ended_members + #undone
end

--- BullMQ's `removeOrphanedJobs` mistakes `groups` and `compensation` for jobs, and deletes the keys it
--- knows below them, unless `de` names them. An index that it deleted is rebuilt.
local function keepFromOrphans(base, open)
  local words = {}
  if redis.call("EXISTS", base .. ":compensation:meta") == 1 then words[1] = "compensation" end
  if redis.call("EXISTS", base .. ":groups", open, groups.ended(base)) > 0 then
    words[#words + 1] = "groups"
  end
  if #words == 0 or redis.call("SADD", base .. ":de", unpack(words)) == 0 then return end
  for _, group_id in ipairs(redis.call("ZREVRANGE", groups.ended(base), 0, 999)) do
    local created_at = redis.call("HGET", base .. ":groups:" .. group_id, "createdAt")
    if created_at then redis.call("ZADD", base .. ":groups", "NX", created_at, group_id) end
  end
end

local OVER = { COMPLETED = true, FAILED = true, FAILED_COMPENSATION = true }
--- Set when a group is looked at next, if it is still open. If a worker that does not know about stages
--- has ended it, it is still in their index.
local function lookAgain(work, open, id, state, due)
  for _, index in ipairs({ open, stages.index(work.base) }) do
    if not state or OVER[state] then
      redis.call("ZREM", index, id)
    elseif not work.is_whole then
      redis.call("ZADD", index, "XX", due, id)
    end
  end
end

--- The groups that are due; those with stages have an index of their own.
local function dueGroups(work, open)
  local ids, seen = {}, {}
  for _, index in ipairs({ open, stages.index(work.base) }) do
    for _, id in ipairs(redis.call("ZRANGEBYSCORE", index, "-inf", work.now, "LIMIT", 0, 100)) do
      if not seen[id] then seen[id], ids[#ids + 1] = true, id end
    end
  end
  return ids
end

--- In how many ms the next group is due, -1 for none.
local function nextDue(work, open)
  local wait_ms = -1
  for _, index in ipairs({ open, stages.index(work.base) }) do
    local first = redis.call("ZRANGE", index, 0, 0, "WITHSCORES")[2]
    local left_ms = first and math.max(0, tonumber(first) - work.now)
    if left_ms and (wait_ms < 0 or left_ms < wait_ms) then wait_ms = left_ms end
  end
  return wait_ms
end

local DAMAGED = "it cannot be looked after: "
--- Bring one group up to date, and set when it is looked at next.
local function lookAt(work, open, id, a)
  local base, now, key = work.base, work.now, work.base .. ":groups:" .. id
  reconcile(work, key)
  local known = hashes.read(key, "state", "x.deadline", "createdAt", "x.asks")
  -- BullMQ may have deleted the index while nothing protected it.
  local created = string.match(known.createdAt or "", "^%d+$")
  if known.state and created then redis.call("ZADD", base .. ":groups", "NX", created, id) end
  if known["x.asks"] and string.find(known["x.asks"], DAMAGED, 1, true) == 1 then
    redis.call("HDEL", key, "x.asks")
    if known.state == "ACTIVE" or known.state == "COMPENSATING" then
      redis.call("ZREM", groups.asking(base), id)
    end
  end
  local kept, due, cost = stages.keepTime(key, known.state, tonumber(known["x.deadline"]), now)
  work.settled, work.looked = work.settled + kept, work.looked + cost
  if work.is_reading then due = now end
  if due and due <= now then
    work.is_unfinished = true
  elseif known.state and redis.call("ZSCORE", open, id) then
    work.stayed = work.stayed + 1
  end
  lookAgain(work, open, id, known.state, math.min(due or math.huge, now + a.look_again_ms))
end

--- The same, whatever the record holds: one damaged group must not block the others. A person is asked
--- about it.
local function lookSafely(work, open, id, a)
  local is_sound, problem = pcall(lookAt, work, open, id, a)
  if is_sound then return end
  local words = type(problem) == "table" and problem.err or tostring(problem)
  local key = work.base .. ":groups:" .. id
  redis.pcall("HSET", key, "x.asks", DAMAGED .. words)
  redis.call("ZADD", groups.asking(work.base), clock.stamp(work.now), id)
  work.stayed = work.stayed + 1
  lookAgain(work, open, id, true, work.now + a.look_again_ms)
end

function calls.reconcileGroups(KEYS, a, ARGV)
  local base, open = unpack(KEYS)
  local now = clock.now()
  local work = { base = base, now = now, looked = 0, settled = 0, stayed = 0, events = endings.begin(),
    is_reading = false, is_unfinished = false, is_whole = a.everything }
  keepFromOrphans(base, open)
  local ids = a.everything and redis.call("ZRANGE", open, a.skip, a.skip + 99) or dueGroups(work, open)
  local done = 0
  for _, id in ipairs(ids) do
    if work.looked >= a.most or work.is_reading then break end
    done = done + 1
    lookSafely(work, open, id, a)
  end
  local more = (work.is_reading or work.is_unfinished or done < #ids or #ids >= 100) and 1 or 0
  return { work.settled, more, work.stayed, nextDue(work, open) }
end
