--- Stages: members of a group that become jobs when others have completed, and signals that somebody else
--- ends. The way back through the graph is in rooms/retreats.lua.
---
--- In `:plan`, `gN` is a gate: { after, members, keys of after, keys of members }. It opens for its
--- members when all of `after` have completed. A member's entry is { job key, name, undo, kind, is an
--- earlier run, label, gates behind it, gate before it }.
--- `:stage` holds what members will be: `N` the job or the signal, `N.data` and `N.opts` its payload,
--- `N.early` how a signal ended before its turn. `:signals` holds the time limits of signals that are
--- awaited. In `:jobs` such members are `planned`, signals whose turn has come are `awaited`; workers
--- that do not know about stages touch neither.

local MOST_AT_ONCE = 250
local MOST_BYTES = 500000
local MOST_TOLD = 100
local MAIL_MS = "60000"
local LATE_MS = 86400000
--- Workers that know of no groups look for them every five seconds.
local SOON_MS = 15000

function stages.member(key, number)
  local packed = redis.call("HGET", key .. ":plan", number)
  return packed and cmsgpack.unpack(packed)
end

--- What a member is called.
function stages.label(key, number)
  local member = stages.member(key, number)
  return member and (member[6] or member[2]) or ""
end

--- A line of the group's timeline.
function stages.log(group, now, what, label, why)
  local line = table.concat({ clock.stamp(now), what, label or "", why or "" }, "\n")
  if redis.call("RPUSH", group.key .. ":log", line) > 1000 then
    redis.call("LTRIM", group.key .. ":log", -1000, -1)
  end
end

--- The plan of a group: members by their numbers, gates by theirs, numbers by the keys of jobs. It is read
--- once per call, which may end many members.
local function readPlan(group)
  memory.plans = memory.plans or {}
  if memory.plans[group.key] then return memory.plans[group.key] end
  local plan = { members = {}, gates = {}, number_of = {} }
  memory.plans[group.key] = plan
  local flat = redis.call("HGETALL", group.key .. ":plan") -- bounded: members of a group
  for i = 1, #flat, 2 do
    local field, packed = flat[i], flat[i + 1]
    if string.find(field, "^%d+$") then
      local member = cmsgpack.unpack(packed)
      plan.members[field] = member
      if not member[5] then plan.number_of[member[1]] = field end
    elseif string.find(field, "^g%d+$") then
      plan.gates[tonumber(string.sub(field, 2))] = cmsgpack.unpack(packed)
    end
  end
  return plan
end

function stages.plan(group) return readPlan(group) end

--- The plan has changed.
function stages.forgetPlan(group)
  if memory.plans then memory.plans[group.key] = nil end
end

--- Groups with stages by the time at which to look at them. Workers that do not know about stages postpone
--- the time in `toril:groups-open`, and leave this index alone.
function stages.index(owner) return owner .. ":toril:groups-staged" end

--- Bring forward the time at which the group is looked at.
local function hurry(group, at, now)
  if at <= now then group.is_hurried = true end
  redis.call("ZADD", stages.index(group.owner), "LT", clock.stamp(at), group.id)
end

--- Let the workers of another queue watch the time limits of a group too; the queue that owns it may
--- have no workers. If its next limit is due in `first_ms`, perhaps before they look again, two are told.
function stages.share(owner, base, until_ms, first_ms)
  if parcels.isAway(base) then
    local what = table.concat({ owner, clock.stamp(until_ms), clock.digits(first_ms or 0) }, "\n")
    parcels.send(base, what, { verb = "shareGroups", owner = owner, until_ms = until_ms, first_ms = first_ms })
    return
  end
  if first_ms and first_ms < SOON_MS then stages.ring(base) end
  if base == owner then return end
  local deadlines = base .. ":toril:group-deadlines"
  redis.call("ZADD", deadlines, "GT", clock.stamp(until_ms), owner)
  local last = redis.call("ZREVRANGE", deadlines, 0, 0, "WITHSCORES")[2]
  redis.call("PEXPIREAT", deadlines, clock.stamp(tonumber(last) + LATE_MS))
end

-- Forward -----------------------------------------------------------------------------------------

--- The results that go into a member's data, as the inside of an object; nothing, and whose result is
--- missing, if one of them is not known.
local function inputsOf(group, entry)
  local parts = {}
  for i, input in ipairs(entry.inputs) do
    local number = clock.digits(input[2])
    local value = redis.call("HGET", group.key .. ":results", number)
    if not value then
      local member = stages.member(group.key, number)
      value = member and not parcels.isAway(member[1]) and redis.call("HGET", member[1], "returnvalue")
      if not value then return nil, member and (member[6] or member[2]) or number end
    end
    parts[i] = input[1] .. ":" .. value
  end
  return table.concat(parts, ",")
end

--- Put a job of a group where it belongs; `homes` are the queues that jobs come to in this call.
function stages.insert(homes, base, job, data, opts, now, owner)
  if parcels.isAway(base) then
    remotes.add(base, job, data, opts, owner)
    return
  end
  local to = homes[base]
  if not to then
    to = arrivals.at(queues.at(base))
    homes[base] = to
  end
  to.count = to.count + 1
  arrivals.insert(to, job, data, opts, now)
end

--- The same if possible: the queue may be damaged, or we may not write to it, and the group is fine.
--- Returns nothing if the job is in, else why it is not.
function stages.tryInsert(homes, base, job, data, opts, now, owner)
  local is_in, problem = pcall(stages.insert, homes, base, job, data, opts, now, owner)
  if is_in then return nil end
  if not parcels.isAway(base) then
    -- Its place comes first, then its hash: if something fails after that, only the announcement is lost.
    if redis.call("EXISTS", base .. ":" .. job.id) == 1 then return nil end
    homes[base].count = homes[base].count - 1
  end
  return type(problem) == "table" and problem.err or tostring(problem)
end

--- All are in: wake the workers that wait for them.
function stages.close(homes)
  for _, to in pairs(homes) do
    pcall(arrivals.close, to)
  end
end

--- A job of the group cannot be added: a person is asked, and it is tried again at the next look.
function stages.askFor(group, name, base, why, now)
  group.asks = "job " .. name .. " cannot be added to " .. base .. ": " .. why
  redis.call("HSET", group.key, "x.asks", group.asks)
  redis.call("ZADD", groups.asking(group.owner), clock.stamp(now), group.id)
end

--- Nothing blocks its jobs any more.
function stages.askNoMore(group)
  if not group.asks then return end
  group.asks = nil
  redis.call("HDEL", group.key, "x.asks")
  if group.state ~= "BLOCKED" then redis.call("ZREM", groups.asking(group.owner), group.id) end
end

--- A planned member becomes a job. Returns why it cannot, if it never can; how many bytes it took; and
--- why it cannot now.
local function become(group, number, entry, data, opts, homes, now)
  if entry.custom and not parcels.isAway(entry.key) and redis.call("EXISTS", entry.key) == 1 then
    return "a job with the id " .. entry.id .. " exists already", 0
  end
  if entry.inputs then
    local inputs, missing = inputsOf(group, entry)
    if not inputs then return "the result of " .. missing .. " is not known any more", 0 end
    data = texts.extend(data, inputs)
  end
  entry.group = group.key .. ":" .. entry.kind .. number
  return nil, #data + #opts, stages.tryInsert(homes, entry.base, entry, data, opts, now, group.owner)
end

--- The turn of a signal has come.
local function await(group, number, entry, now)
  if not entry.timeout_ms then return end
  local at = now + entry.timeout_ms
  redis.call("HSET", group.key .. ":signals", number, clock.stamp(at))
  hurry(group, at, now)
  for _, base in ipairs(entry.queues) do
    stages.share(group.owner, base, at, entry.timeout_ms)
  end
end

--- Release planned members whose predecessors have completed: jobs become jobs, signals are awaited. What
--- exceeds one call is done at the next look at the group, which follows immediately.
local function release(group, numbers, now)
  local stage, homes, written, failed, told = group.key .. ":stage", {}, {}, {}, {}
  local bytes, gone, is_held = 0, {}, false
  for i, number in ipairs(numbers) do
    if i > MOST_AT_ONCE or bytes > MOST_BYTES then
      hurry(group, now, now)
      break
    end
    local known = redis.call("HMGET", stage, number, number .. ".data", number .. ".opts", number .. ".early")
    local entry = known[1] and cmsgpack.unpack(known[1])
    if entry then
      local status, why, size, obstacle = "pending", nil, 0, nil
      if entry.kind == "s" then
        status = "awaited"
        await(group, number, entry, now)
        if known[4] then told[#told + 1] = { number, entry, known[4] } end
      else
        why, size, obstacle = become(group, number, entry, known[2], known[3], homes, now)
      end
      if why then failed[#failed + 1] = { number, entry, why } end
      bytes = bytes + size
      if obstacle then
        is_held = true
        stages.askFor(group, entry.name, entry.base, obstacle, now)
      else
        written[#written + 1], written[#written + 2] = entry.key, status
        if not group.pivot and entry.kind ~= "s" then
          gone[#gone + 1], gone[#gone + 2], gone[#gone + 3] = number, number .. ".data", number .. ".opts"
        end
      end
    end
  end
  if #written == 0 then return end
  if not is_held then stages.askNoMore(group) end
  redis.call("HSET", group.key .. ":jobs", unpack(written))
  if #gone > 0 then redis.call("HDEL", stage, unpack(gone)) end
  stages.close(homes)
  for _, one in ipairs(failed) do
    groups.memberEnded(group.key, one[2].kind, one[1], one[2].key, "failed",
      { id = one[2].id, value = one[3], started = false, is_open = false }, now)
  end
  for _, one in ipairs(told) do
    stages.signal(group.key, one[1], one[2].key, one[3], now)
  end
end

--- The planned members of a gate, if it is open.
local function opened(group, gate)
  local after, keys = gate[3], {}
  if group.completed < #after then return {} end
  for _, key in ipairs(after) do keys[#keys + 1] = key end
  for _, key in ipairs(gate[4]) do keys[#keys + 1] = key end
  local statuses = redis.call("HMGET", group.key .. ":jobs", unpack(keys))
  for i = 1, #after do
    if statuses[i] ~= "completed" then return {} end
  end
  local planned = {}
  for i, number in ipairs(gate[2]) do
    if statuses[#after + i] == "planned" then planned[#planned + 1] = clock.digits(number) end
  end
  return planned
end

--- A member has completed: open the gates that waited for it alone.
function stages.advance(group, number, now)
  local member = stages.member(group.key, number)
  if not member or not member[7] then return end
  local fields, numbers = {}, {}
  for i, gate in ipairs(member[7]) do
    fields[i] = "g" .. clock.digits(gate)
  end
  for _, packed in ipairs(redis.call("HMGET", group.key .. ":plan", unpack(fields))) do
    for _, planned in ipairs(opened(group, cmsgpack.unpack(packed))) do
      numbers[#numbers + 1] = planned
    end
  end
  if #numbers > 0 then release(group, numbers, now) end
end

--- Open every gate that may be open: a worker that does not know about stages has completed a member, or
--- there was too much to do at once.
function stages.advanceAll(group, now)
  local plan, numbers = readPlan(group), {}
  local planned = {}
  for number, member in pairs(plan.members) do
    if not member[5] and not member[8] then planned[#planned + 1] = number end
  end
  for _, number in ipairs(planned) do
    if redis.call("HGET", group.key .. ":jobs", plan.members[number][1]) == "planned" then
      numbers[#numbers + 1] = number
    end
  end
  for _, gate in pairs(plan.gates) do
    for _, number in ipairs(opened(group, gate)) do
      numbers[#numbers + 1] = number
    end
  end
  if #numbers > 0 then release(group, numbers, now) end
  return #numbers
end

--- A signal has ended: `told` begins with c if it completed or f if it failed, followed by the result or
--- the reason.
function stages.signal(key, number, job, told, now)
  local state = string.sub(told, 1, 1) == "c" and "completed" or "failed"
  redis.call("HDEL", key .. ":signals", number)
  groups.memberEnded(key, "s", number, job, state,
    { id = string.match(job, "([^:]+)$"), value = string.sub(told, 2), started = false, is_open = false },
    now)
end

--- Somebody says how a signal ended, perhaps before its turn. Returns false the second time.
function stages.tellSignal(group, one, status, state, value, now)
  local told = (state == "completed" and "c" or "f") .. value
  if status == "awaited" then
    stages.signal(group.key, one.number, one.job, told, now)
    return true
  end
  return redis.call("HSETNX", group.key .. ":stage", one.number .. ".early", told) == 1
end

--- Signals whose time is up fail, or complete with their default. Returns how many.
local function endSignals(group, now)
  local limits, count = redis.call("HGETALL", group.key .. ":signals"), 0 -- bounded: members of a group
  for i = 1, #limits, 2 do
    local number = limits[i]
    if tonumber(limits[i + 1]) <= now then
      local packed = redis.call("HGET", group.key .. ":stage", number)
      local entry = packed and cmsgpack.unpack(packed)
      if entry then
        stages.signal(group.key, number, entry.key, entry.default and "c" .. entry.default or "ftimeout", now)
      else
        redis.call("HDEL", group.key .. ":signals", number)
      end
      count = count + 1
    end
  end
  return count
end

--- Signals that wait for nobody get their turn when their group is created.
function stages.begin(key, jobs_of, now)
  local group
  for _, job in ipairs(jobs_of) do
    if job.kind == "s" and not job.waits then
      group = group or groups.read(key)
      await(group, clock.digits(job.number), job, now)
    end
  end
end

-- Back --------------------------------------------------------------------------------------------

--- Members that are planned or awaited when their group turns are cancelled.
function stages.cancelPlanned(group, statuses)
  local written = {}
  for i = 1, #statuses, 2 do
    if statuses[i + 1] == "planned" or statuses[i + 1] == "awaited" then
      written[#written + 1], written[#written + 2] = statuses[i], "cancelled"
    end
  end
  if #written == 0 then return end
  redis.call("HSET", group.key .. ":jobs", unpack(written))
  redis.call("UNLINK", group.key .. ":signals")
  group.cancelled = redis.call("HINCRBY", group.key, "cancelledCount", clock.digits(#written / 2))
end

--- Tell the workers that run these members that their group has turned.
function stages.tell(job_keys, reason)
  for _, job in ipairs(job_keys) do
    local holder = redis.pcall("GET", job .. ":lock")
    local worker = type(holder) == "string" and string.match(holder, "^(.+):[^:]*$")
    local base, id = string.match(job, "^(.+):([^:]+)$")
    if worker then
      local mailbox = base .. ":toril:mail-" .. worker
      redis.pcall("RPUSH", mailbox, cmsgpack.pack({ id, holder, reason, "turned" }))
      redis.call("PEXPIRE", mailbox, MAIL_MS)
    end
  end
end

--- Tell two idle workers of a queue to look for groups that are due, because one of them may die; they
--- hear it as they hear their mail.
function stages.ring(base)
  local bell = base .. ":toril:group-bell"
  if redis.call("EXISTS", bell) == 1 then return end
  redis.call("RPUSH", bell, "1", "1")
  redis.call("PEXPIRE", bell, MAIL_MS)
end

-- The pivot ---------------------------------------------------------------------------------------

--- Did an earlier run of this job complete? Somebody has forced it to run once more.
local function hasEarlierRun(group, job)
  if redis.call("HEXISTS", group.key, "x.repeats") == 0 then return false end
  for _, one in pairs(readPlan(group).members) do
    if one[5] and one[1] == job then return true end
  end
  return false
end

--- Has the pivot completed, in this run or an earlier one? What came before it is not undone any more.
function stages.isPastPivot(group)
  local member = group.pivot and stages.member(group.key, group.pivot)
  if not member then return false end
  return redis.call("HGET", group.key .. ":jobs", member[1]) == "completed" or hasEarlierRun(group, member[1])
end

--- The group can go neither forward nor back until a person says how.
function stages.block(group, cause, now)
  if group.state == "BLOCKED" then return end
  group.state = "BLOCKED"
  redis.call("HSET", group.key, "state", "BLOCKED", "updatedAt", clock.stamp(now), "x.failedJobId", cause.id,
    "x.reason", cause.reason, "x.failedMember", cause.label or "")
  -- If nobody knows how the pivot ended, somebody may still say that it did nothing.
  if stages.isPastPivot(group) then redis.call("UNLINK", group.key .. ":undo") end
  redis.call("ZADD", groups.asking(group.owner), clock.stamp(now), group.id)
  groups.emit(group, "group:blocked", "failedJobId", cause.id, "reason", cause.reason)
  stages.log(group, now, "blocked", cause.label, cause.reason)
end

--- A group that was blocked continues; it is over if its last member was the pivot, which completed after
--- the group had turned.
function stages.unblock(group, now)
  group.state = "ACTIVE"
  redis.call("HSET", group.key, "state", "ACTIVE", "updatedAt", clock.stamp(now))
  redis.call("HDEL", group.key, "x.failedJobId", "x.reason", "x.failedMember")
  local deadline = redis.call("HGET", group.key, "x.deadline")
  if deadline and tonumber(deadline) <= now then redis.call("HDEL", group.key, "x.deadline") end
  redis.call("ZREM", groups.asking(group.owner), group.id)
  groups.completeIfDone(group, now)
end

--- A member that failed in a blocked group runs again: the group waits for it as before.
function stages.revive(group, job, status, now)
  redis.call("HSET", group.key .. ":jobs", job, "pending")
  group[status] = redis.call("HINCRBY", group.key, status .. "Count", "-1")
  if group.failed + group.cancelled == 0 then stages.unblock(group, now) end
end

--- The job of a member that blocks its group and may be run again under its old id, and how it ended.
local function blocking(key, number)
  local member = stages.member(key, number)
  local status = member and redis.call("HGET", key .. ":jobs", member[1])
  if status ~= "failed" and status ~= "cancelled" then return nil end
  -- A job elsewhere that has ended is removed before it is added again, as in retryGroup.
  local is_free = parcels.isAway(member[1]) or redis.call("EXISTS", member[1]) == 0
  return is_free and member[1] or nil, status
end

--- May the dead letter of a member be replayed, in a group that is not over? Only if it blocks its group.
--- Otherwise the member runs again already, or a person has said how it ended.
function stages.mayRejoin(key, number, is_blocked)
  if is_blocked then return blocking(key, number) ~= nil end
  return not hashes.tryRead(key .. ":plan", number)[number]
end

--- The id that the job of a member had that blocks its group, and has again if its dead letter is
--- replayed in the queue at `base`; nothing if its group would not wait for it. Then its key, how it
--- ended, and its group.
function stages.oldId(key, number, base)
  local group = groups.read(key)
  local job, status = blocking(key, number)
  if not group or group.state ~= "BLOCKED" or not job then return nil end
  local home, id = string.match(job, "^(.+):([^:]+)$")
  if home ~= base then return nil end
  return id, job, status, group
end

--- The dead letter of a member that blocks its group is replayed in the queue at `base`. Returns its id;
--- nothing if the group does not wait for it.
function stages.rejoin(key, number, base, now)
  local id, job, status, group = stages.oldId(key, number, base)
  if not id then return nil end
  stages.revive(group, job, status, now)
  redis.call("HDEL", key, "x.letter.m" .. number)
  redis.call("HDEL", key .. ":results", number .. ".at", number .. ".why")
  return id
end

--- A person says how a member that blocks its group ended. Returns false if that is not possible.
function stages.overrule(group, one, status, state, ended, now)
  if state == "failed" then
    -- Nobody knew how the pivot ended; it did nothing, so there is a way back.
    if one.number ~= group.pivot or stages.isPastPivot(group) then return false end
    stages.unblock(group, now)
    groups.turn(group, { id = one.id, reason = ended.value, label = stages.label(group.key, one.number) }, now)
    return true
  end
  stages.revive(group, one.job, status, now)
  groups.memberEnded(group.key, one.kind, one.number, one.job, state, ended, now)
  return true
end

--- What blocks the group was done by hand: it continues as if that had completed and returned nothing.
function stages.skipFailed(group, now)
  local skipped = {}
  for number, member in pairs(readPlan(group).members) do
    local status = not member[5] and redis.call("HGET", group.key .. ":jobs", member[1])
    if status == "failed" or status == "cancelled" then
      skipped[#skipped + 1] = { number, member }
      stages.revive(group, member[1], status, now)
    end
  end
  if group.state == "BLOCKED" then stages.unblock(group, now) end
  for _, one in ipairs(skipped) do
    local member = one[2]
    groups.memberEnded(group.key, member[4], one[1], member[1], "completed",
      { id = string.match(member[1], "([^:]+)$"), value = "null", started = true, is_open = false }, now)
  end
end

--- Remove the dead letter of a job of the group: if replayed, it would run a second time.
function stages.removeLetter(key, field, membership, budget)
  local letter = redis.call("HGET", key, field)
  if not letter then return end
  redis.call("HDEL", key, field)
  if parcels.isAway(letter) then
    parcels.send(string.match(letter, "^(.+):[^:]+$"), letter, { verb = "removeLetter", letter = letter, key = key,
      membership = membership, most = budget.left })
  else
    stages.removeLetterAt(letter, key, membership, budget)
  end
end

--- The same for a letter in this slot, if it is one of the group.
function stages.removeLetterAt(letter, key, membership, budget)
  local base, id = string.match(letter, "^(.+):([^:]+)$")
  local queue, member = queues.at(base), redis.call("HGET", letter, "x.member")
  budget.left = budget.left - redis.call("LLEN", queue.wait) - redis.call("LLEN", queue.paused)
  local is_ours = member and (member == membership or not membership and string.find(member, key .. ":", 1, true) == 1)
  if not is_ours or budget.left < 0 or redis.call("EXISTS", letter .. ":lock") == 1 then return end
  journal.emit(queue, "removed", "jobId", id, "prev", places.takeOut(queue, id))
  jobs.delete(letter)
end

-- The end -----------------------------------------------------------------------------------------

--- What the members returned, as JSON; null if that is longer than `most` bytes, or the group is large.
function stages.results(group, most)
  if group.total > MOST_TOLD then return "null" end
  local numbers, bytes, parts = {}, 0, {}
  for number = 0, group.total - 1 do
    numbers[#numbers + 1] = clock.digits(number)
    bytes = bytes + redis.call("HSTRLEN", group.key .. ":results", clock.digits(number))
    if bytes > most then return "null" end
  end
  local values = redis.call("HMGET", group.key .. ":results", unpack(numbers))
  local packed = redis.call("HMGET", group.key .. ":plan", unpack(numbers))
  for i, value in ipairs(values) do
    local member = value and packed[i] and cmsgpack.unpack(packed[i])
    if member then parts[#parts + 1] = texts.quote(member[6] or member[2]) .. ":" .. value end
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

--- Add the job that was asked for when the group ends like this, once.
function stages.announce(group, when, now)
  local packed = redis.call("HGET", group.key .. ":plan", when)
  if not packed then return end
  redis.call("HDEL", group.key .. ":plan", "on_completed", "on_failed")
  local job, reason = cmsgpack.unpack(packed), redis.call("HGET", group.key, "x.reason")
  local data = texts.extend(job.data, '"group":{"id":' .. texts.quote(group.id) .. ',"name":'
    .. texts.quote(group.name) .. ',"state":"' .. group.state .. '","reason":'
    .. (reason and texts.quote(reason) or "null") .. ',"results":' .. stages.results(group, MOST_BYTES) .. "}")
  local base, homes = job.queue, {}
  if not parcels.isAway(base) and redis.call("EXISTS", base .. ":" .. job.id) == 1 then
    if job.custom then return end
    job.id = job.id .. "-" .. clock.stamp(now)
  end
  local why = stages.tryInsert(homes, base, job, data, job.opts, now, group.owner)
  if why then stages.log(group, now, "cannot add " .. when, job.name, why) end
  stages.close(homes)
end

-- Looking after -----------------------------------------------------------------------------------

--- Advance a group whose members were ended by workers that do not know about stages, and enforce its
--- time limits. Returns how much there was to do.
function stages.keep(group, now)
  if group.state == "ACTIVE" or group.state == "BLOCKED" then
    if not group.is_staged then return 0 end
    local count = endSignals(group, now)
    if count > 0 then return count end
    return stages.advanceAll(group, now)
  end
  if group.state ~= "COMPENSATING" then return 0 end
  if group.is_staged then
    local before = group.cancelled
    stages.cancelPlanned(group, redis.call("HGETALL", group.key .. ":jobs")) -- bounded: members of a group
    if stages.isPastPivot(group) then
      local known = redis.call("HMGET", group.key, "x.failedJobId", "x.reason", "x.failedMember")
      stages.block(group, { id = known[1] or "", reason = known[2] or "", label = known[3] or "" }, now)
      return 1
    end
    if group.cancelled > before then
      groups.settle(group, now)
      return group.cancelled - before
    end
  end
  local count = groups.overdue(group, now)
  if count > 0 then return count end
  -- What could not be undone when it was due, because its queue was damaged, may be possible now.
  local running = group.running
  retreats.recall(group)
  groups.settle(group, now)
  return math.max(0, group.running - running)
end

--- When the group is due by its time limits, if it is.
local function nextDue(group)
  if group.state == "COMPENSATING" and group.undo_ms then
    return tonumber(redis.call("HGET", group.key, "x.undoDeadline") or nil)
  end
  if not group.is_staged then return nil end
  local due
  for _, at in ipairs(redis.call("HVALS", group.key .. ":signals")) do -- bounded: members of a group
    due = math.min(due or math.huge, tonumber(at))
  end
  return due
end

--- Enforce the time limits of a group in this state. Returns how much there was to do, when the next
--- limit is due, if any, and how many members were examined.
function stages.keepTime(key, state, deadline, now)
  local group = state and groups.read(key)
  if not group then return 0, nil, 0 end
  local cost, done = group.is_staged and group.total or 0, stages.keep(group, now)
  if group.is_hurried then return done, now, cost end
  if done > 0 then group = groups.read(key) end
  if not group then return done, nil, cost end
  if deadline and deadline <= now and (group.state == "ACTIVE" or group.state == "BLOCKED") then
    redis.call("HDEL", key, "x.deadline")
    local cause = { id = "", reason = "timeout" }
    if stages.isPastPivot(group) then
      stages.block(group, cause, now)
    elseif group.state == "ACTIVE" then
      groups.turn(group, cause, now)
    end
    return done + 1, nil, cost
  end
  local due = nextDue(group)
  if deadline and deadline > now then due = math.min(due or deadline, deadline) end
  return done, due, cost
end
