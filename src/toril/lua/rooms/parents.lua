--- What happens to a parent when a child ends. Members of a parent's sets are full job keys.

--- Release a parent into its lane: at its place, or in front if it has started and holds the lane.
local function releaseIntoLane(queue, id, field, due_ms)
  local has_started = lanes.isHeldBy(queue, laneNames.laneOf(field), id)
  if due_ms then
    lanes.putOff(queue, field, id, due_ms, has_started)
  elseif has_started then
    lanes.giveBack(queue, field, id)
  else
    lanes.enter(queue, field, id, laneNames.PLAIN)
  end
end

--- The parent that a child names. If the JSON cannot be read, the child must still be able to end: then
--- the parent's key tells where it is.
function parents.of(parent_key, parent_json)
  local is_read, parent = pcall(cjson.decode, parent_json or "")
  if is_read and type(parent) == "table" and type(parent.id) == "string"
      and type(parent.queueKey) == "string" then
    return { key = parent_key, id = parent.id, queue = queues.at(parent.queueKey), flags = parent }
  end
  local base, id = string.match(parent_key, "^(.+):([^:]+)$")
  return { key = parent_key, id = id or "", queue = queues.at(base or parent_key), flags = {} }
end

--- From now on the parent could run, or from `due` on: its children no longer count against its `expires`.
local function noteRelease(parent, name, due)
  if name then redis.call("HSET", parent.key, "x.due", clock.digits(due)) end
end

--- Release a parent that waits for children: to its delay, its priority, or the front of the list.
--- A delay counts from now; a time that it was given is kept.
function parents.release(parent, now)
  local queue = parent.queue
  if redis.call("ZREM", queue.waiting_children, parent.id) == 0 then return end
  local gate = gates.read(queue)
  local settings = hashes.read(parent.key, "name", "priority", "delay", "x.lane", "x.due", "ats")
  local due = now
  if not settings.ats then -- one that has started was due then, or somebody promoted it
    due = math.max(now, tonumber(settings["x.due"]) or now + (tonumber(settings.delay) or 0))
  end
  noteRelease(parent, settings.name, due)
  if due > now then
    journal.emit(queue, "delayed", "jobId", parent.id, "delay", due)
    if settings["x.lane"] then
      releaseIntoLane(queue, parent.id, settings["x.lane"], due)
    else
      redis.call("ZADD", queue.delayed, due * 4096, parent.id)
      places.wakeWhenDue(queue)
    end
    return
  end
  if settings["x.lane"] then
    releaseIntoLane(queue, parent.id, settings["x.lane"])
  else
    places.ready(queue, gate, parent.id, tonumber(settings.priority) or 0, "RPUSH")
    places.wake(queue, gate)
  end
  journal.emit(queue, "waiting", "jobId", parent.id, "prev", "waiting-children")
end

--- Release a parent because one of its children was removed: to the front, whatever its priority.
function parents.releasePlainly(parent, silently)
  local queue = parent.queue
  if redis.call("ZREM", queue.waiting_children, parent.id) == 0 then return end
  local gate = gates.read(queue)
  local known = hashes.read(parent.key, "name", "x.lane")
  noteRelease(parent, known.name, clock.now())
  if known["x.lane"] then
    releaseIntoLane(queue, parent.id, known["x.lane"])
  else
    redis.call("RPUSH", gates.readyList(queue, gate), parent.id)
    places.wake(queue, gate)
  end
  if not silently then
    journal.emit(queue, "waiting", "jobId", parent.id, "prev", "waiting-children")
  end
end

function parents.hasNoChildrenLeft(parent)
  return redis.call("SCARD", parent.key .. ":dependencies") == 0
end

--- Let the slot of a parent do what must be done with it. There `verb` calls the function of this room
--- with that name.
--- The parcels about one child are taken in order: each names the one before it (`x.told`) while that is
--- still here, and is not taken before it.
--- If the child was removed, the caller knows what was told of it before.
local function sendToParent(parent_key, parent_json, child_key, verb, body, told)
  local known = hashes.read(child_key, "name", "x.told")
  told = known["x.told"] or told
  body.verb, body.parent_key, body.parent, body.child = verb, parent_key, parent_json, child_key
  body.after = told and parcels.isHere(told) and told or nil
  local id = parcels.send(parents.of(parent_key, parent_json).queue.base,
    child_key .. "\n" .. (told or ""), body)
  if known.name then redis.call("HSET", child_key, "x.told", id) end
end

--- A removed child no longer holds its parent back.
function parents.unlink(child_key, parent_key, parent_json, silently, told)
  if not parent_key or not parent_json or parent_key == "" then return end
  if parcels.isAway(parent_key) then
    sendToParent(parent_key, parent_json, child_key, "unlink", { silently = silently }, told)
    return
  end
  if redis.call("SREM", parent_key .. ":dependencies", child_key) == 0 then return end
  local parent = parents.of(parent_key, parent_json)
  if parents.hasNoChildrenLeft(parent) then
    parents.releasePlainly(parent, silently)
  end
end

local function childCompleted(parent, child_key, return_value, now)
  if redis.call("SREM", parent.key .. ":dependencies", child_key) == 0 then return end
  redis.call("HSET", parent.key .. ":processed", child_key, return_value)
  if parents.hasNoChildrenLeft(parent) then
    parents.release(parent, now)
  end
end

--- A child failed under the policy "fail the parent": the worker that takes the parent next fails it.
local function failParent(parent, child_key, now)
  redis.call("ZADD", parent.key .. ":unsuccessful", now, child_key)
  if redis.call("EXISTS", parent.key) == 0 then return end
  local queue = parent.queue
  local reason = "child " .. child_key .. " failed"
  if redis.call("ZSCORE", queue.waiting_children, parent.id) then
    redis.call("HSET", parent.key, "defa", reason)
    parents.release(parent, now)
  elseif redis.call("ZREM", queue.delayed, parent.id) == 1 then
    redis.call("HSET", parent.key, "defa", reason, "delay", 0, "x.due", now)
    redis.call("ZADD", queue.waiting_children, now, parent.id)
    parents.release(parent, now)
  elseif not redis.call("ZSCORE", queue.failed, parent.id) then
    redis.call("HSET", parent.key, "defa", reason)
  end
end

--- Does the failure of a child matter to its parent?
local function mindsFailure(flags)
  return flags.fpof or flags.cpof or flags.idof or flags.rdof
end

local function childFailed(parent, child_key, reason, now)
  local flags = parent.flags
  if not mindsFailure(flags) then return end
  if redis.call("SREM", parent.key .. ":dependencies", child_key) == 0 then return end
  if flags.fpof then
    failParent(parent, child_key, now)
  elseif flags.cpof then
    redis.call("HSET", parent.key .. ":failed", child_key, reason)
    parents.release(parent, now)
  else
    if flags.idof then
      redis.call("HSET", parent.key .. ":failed", child_key, reason)
    end
    if parents.hasNoChildrenLeft(parent) then
      parents.release(parent, now)
    end
  end
end

--- A child completed or failed, with its return value or the reason.
function parents.childEnded(parent_key, parent_json, child_key, state, value, now)
  local parent = parents.of(parent_key, parent_json)
  if parcels.isAway(parent_key) then
    if state == "completed" or mindsFailure(parent.flags) then
      sendToParent(parent_key, parent_json, child_key, "childEnded", { state = state, value = value })
    end
  elseif state == "completed" then
    childCompleted(parent, child_key, value, now)
  else
    childFailed(parent, child_key, value, now)
  end
end

--- A child that will run again is pending again; its parent stays where it is.
function parents.relink(child_key, parent_key, parent_json)
  if not parent_key then return end
  if parcels.isAway(parent_key) then
    sendToParent(parent_key, parent_json, child_key, "relink", {})
    return
  end
  if redis.call("EXISTS", parent_key) == 0 then return end
  local was_listed = redis.call("ZREM", parent_key .. ":unsuccessful", child_key)
    + redis.call("HDEL", parent_key .. ":failed", child_key)
    + redis.call("HDEL", parent_key .. ":processed", child_key)
  if was_listed > 0 then
    redis.call("SADD", parent_key .. ":dependencies", child_key)
  end
end

--- Does the existing job belong to another parent that still exists, as far as can be seen from
--- here?
function parents.belongsElsewhere(queue, job)
  local known = redis.call("HGET", queue.base .. ":" .. job.id, "parentKey")
  return known and known ~= job.parent_key
    and (parcels.isAway(known) or redis.call("EXISTS", known) == 1)
end

--- Tie an existing job to the parent of the request. A completed job counts as done; releasing the
--- parent is left to the caller.
function parents.attachChild(queue, job)
  local key = queue.base .. ":" .. job.id
  if redis.call("ZSCORE", queue.completed, job.id) then
    local value = redis.call("HGET", key, "returnvalue") or "null"
    if parcels.isAway(job.parent_key) then
      parents.childEnded(job.parent_key, job.parent, key, "completed", value)
    else
      redis.call("HSET", job.parent_key .. ":processed", key, value)
    end
  elseif not parcels.isAway(job.parent_key) then
    redis.call("SADD", job.parent_key .. ":dependencies", key)
  end
  redis.call("HSET", key, "parentKey", job.parent_key, "parent", job.parent)
end
