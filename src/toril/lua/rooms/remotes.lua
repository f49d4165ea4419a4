--- Groups across slots. The record of a group is in the slot of its owner; its jobs may be elsewhere. The
--- two sides tell each other what happens by parcels (rooms/parcels.lua). Each parcel calls the function
--- that is called directly within a slot.
---
--- The parcels about one job are taken in order: each names the one before it while that is still at its
--- source. The record remembers the last one sent to a job (`x.told.N`, `x.told.cN` for the job that
--- undoes member N), a job the last one sent about it (`x.toldGroup`): its id, and the queue where it was left.
---
--- A job cannot read the record of a group elsewhere. Its own hash says why it may not run (`x.turned`):
--- COMPENSATING if its group has turned, ENDED if its end was reported.

local DAY_MS = 86400000

local function split(membership)
  return string.match(membership, "^(.*):(%a)(%d+)$")
end

local function ownerOf(key)
  return string.match(key, "^(.*):groups:[^:]+$")
end

--- The queue that owns the group of a job; nothing if this is no membership.
function remotes.ownerOf(membership)
  return ownerOf(split(membership) or "")
end

local function toldField(kind, number)
  return "x.told." .. (kind == "c" and "c" or "") .. number
end

--- The id of the parcel that was remembered, if it has not been delivered as far as this slot knows.
local function stillHere(told)
  local id, base = string.match(told or "", "^(%S+) (.*)$")
  return id and parcels.isHere(id, base) and id or nil
end

local function remembered(id)
  return id .. " " .. memory.outbox
end

--- What a parcel's id is derived from. The same may be told of a job twice in one millisecond, by two
--- calls: what was told before makes the difference.
local function following(membership, told)
  return membership .. "\n" .. (told or "")
end

-- Where the record is ------------------------------------------------------------------------------

local function tellJob(base, membership, body, transit)
  local key, kind, number = split(membership)
  local field = toldField(kind, number)
  local told = redis.call("HGET", key, field)
  body.after = stillHere(told)
  redis.call("HSET", key, field, remembered(parcels.send(base, following(membership, told), body, transit)))
end

--- Add a job of a group to a queue elsewhere. Until it is there it is in transit here, by its whole key.
function remotes.add(base, job, data, opts, owner)
  local body = { verb = "addMember", job = job, data = data, opts = opts, owner = owner }
  if job.group then
    tellJob(base, job.group, body, base .. ":" .. job.id)
  else
    parcels.send(base, job.id, body, base .. ":" .. job.id)
  end
end

--- Is the parcel that adds a job still on its way?
function remotes.isOnItsWay(key, kind, number)
  return stillHere(redis.call("HGET", key, toldField(kind, number))) ~= nil
end

--- Cancel members in a queue elsewhere, unless somebody runs them. They report it like any other end.
function remotes.cancel(group, base, job_keys, reason)
  local number_of, fields, after = stages.plan(group).number_of, {}, {}
  for i, job in ipairs(job_keys) do fields[i] = toldField("m", number_of[job] or "") end
  for _, told in ipairs(redis.call("HMGET", group.key, unpack(fields))) do
    after[#after + 1] = stillHere(told)
  end
  parcels.send(base, group.key, { verb = "cancelMembers", key = group.key, jobs = job_keys,
    reason = reason, after = #after > 0 and after or nil })
end

--- Remove a job that has ended from a queue elsewhere.
function remotes.remove(membership, job)
  local base, id = string.match(job, "^(.+):([^:]+)$")
  tellJob(base, membership, { verb = "removeMember", membership = membership, id = id })
end

--- Ask a queue elsewhere about jobs whose ends were perhaps lost. `asked` = { { job, suffix of its
--- membership, where the search in the events continues }, … }.
function remotes.seek(key, base, asked)
  local record, jobs_of = hashes.read(key, "createdAt"), {}
  for _, one in ipairs(asked) do
    local kind, number = string.match(one[2], "^(%a)(%d+)$")
    local told = redis.call("HGET", key, toldField(kind, number))
    if not stillHere(told) then jobs_of[#jobs_of + 1] = { one[1], one[2], one[3], told or "" } end
  end
  if #jobs_of == 0 then return end
  parcels.send(base, key, { verb = "seekMembers", key = key, since = tonumber(record.createdAt) or 0,
    jobs = jobs_of })
end

--- A queue elsewhere does not have a job and has searched its events. What it found counts, unless the
--- job was added again since it was asked.
function remotes.sought(body, now)
  local key, kind, number = split(body.membership)
  if (redis.call("HGET", key, toldField(kind, number)) or "") ~= body.told then return end
  local record = hashes.read(key, "state")
  if not record.state then return end
  local ended = endings.judge(key, body.job, record.state, body.found, now)
  if ended then groups.onSettled(body.membership, body.job, ended.state, ended, now) end
end

-- Where the job is ---------------------------------------------------------------------------------

--- Tell the group of a job something about it, and note more fields of the job with it. If the job was
--- removed, the caller knows what was `told` of it before. Returns whether the job is still there.
local function tellGroup(membership, job, body, told, ...)
  local owner = remotes.ownerOf(membership)
  if not owner then return false end
  local known = hashes.read(job, "x.group", "x.toldGroup")
  told = known["x.toldGroup"] or told
  body.membership, body.job, body.after = membership, job, stillHere(told)
  local id = parcels.send(owner, following(membership, told), body)
  if known["x.group"] ~= membership then return false end
  redis.call("HSET", job, "x.toldGroup", remembered(id), ...)
  return true
end

--- A job whose group is elsewhere has ended.
function remotes.ended(membership, job, state, ended)
  tellGroup(membership, job, { verb = "memberEnded", state = state,
    ended = { id = ended.id, value = ended.value, started = ended.started, is_open = ended.is_open,
      letter = ended.letter } }, ended.told, "x.turned", "ENDED")
end

--- Somebody retries a job whose group is elsewhere, which decides whether that counts.
function remotes.retried(membership, job)
  if tellGroup(membership, job, { verb = "memberRetried" }) then redis.call("HDEL", job, "x.turned") end
end

--- May a job run whose group is elsewhere?
function remotes.stateOf(job)
  return redis.call("HGET", job, "x.turned") or "ACTIVE"
end

--- Let in a job of a group elsewhere. If it is already here, it has been delivered, or somebody has
--- brought it back before its group did. It remembers the parcel that brought it, so that what it tells
--- is not taken for what an earlier job with its id told.
function remotes.receive(to, body, parcel, now)
  local job = body.job
  local key = to.queue.base .. ":" .. job.id
  stages.share(body.owner, to.queue.base, now + DAY_MS)
  local known = hashes.read(key, "name", "x.group")
  if known.name and job.group then
    if known["x.group"] == job.group then return end
    remotes.ended(job.group, key, "failed", { id = job.id, started = false, is_open = false,
      value = "a job with the id " .. job.id .. " exists already" })
    return
  end
  if known.name then
    if job.custom then return end
    job.id = job.id .. "-" .. clock.stamp(now)
  end
  if job.group then
    job.more = job.more or {}
    job.more[#job.more + 1], job.more[#job.more + 2] = "x.toldGroup", parcel
  end
  replays.insert(to, job, body.data, body.opts, now)
end

--- Those of these jobs that belong to a group and have not ended, and what was told of each.
local function unended(key, job_keys)
  local found, told_of = {}, {}
  for _, job in ipairs(job_keys) do
    local known = hashes.read(job, "x.group", "finishedOn", "x.toldGroup")
    told_of[job] = known["x.toldGroup"]
    local is_ours = known["x.group"] and string.find(known["x.group"], key .. ":", 1, true) == 1
    if is_ours and not known.finishedOn then found[#found + 1] = job end
  end
  return found, told_of
end

--- A group elsewhere has turned: cancel its members here, and tell those that run.
function remotes.cancelHere(queue, body)
  local job_keys, told_of = unended(body.key, body.jobs)
  if #job_keys == 0 then return end
  local cancelled, _, ends = members.cancel(queue.base, job_keys, {})
  local is_cancelled = {}
  for i, job in ipairs(cancelled) do
    is_cancelled[job] = true
    ends[i].value, ends[i].told = body.reason, told_of[job]
    remotes.ended(ends[i].membership, job, "cancelled", ends[i])
  end
  for _, job in ipairs(job_keys) do
    if not is_cancelled[job] then redis.call("HSET", job, "x.turned", "COMPENSATING") end
  end
  if #cancelled < #job_keys then stages.tell(job_keys, body.reason) end
end

function remotes.removeHere(queue, body)
  local job = queue.base .. ":" .. body.id
  local known = hashes.read(job, "x.group", "finishedOn")
  if known["x.group"] ~= body.membership or not known.finishedOn then return end
  journal.emit(queue, "removed", "jobId", body.id, "prev", places.takeOut(queue, body.id))
  jobs.delete(job)
end

--- Tell a group elsewhere how its jobs here ended, as far as this queue knows. While an end is on its
--- way, nothing is said about jobs that are gone.
function remotes.seekHere(queue, body)
  local work, owner = endings.begin(), ownerOf(body.key)
  local is_silent = not owner or parcels.hasFor(queue.base, owner)
  for _, one in ipairs(body.jobs) do
    local job, membership, told = one[1], body.key .. ":" .. one[2], one[4]
    local ended, is_gone = endings.read(job)
    if ended then
      remotes.ended(membership, job, ended.state, ended)
    elseif is_gone and not is_silent then
      parcels.send(owner, membership, { verb = "memberSought", membership = membership, job = job,
        told = told, found = endings.search(work, job, one[3], body.since) })
    end
  end
end
