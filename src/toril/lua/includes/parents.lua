--- @lazily
--- What the end of a child does to its parent. Members of a parent's sets are full job keys.
--- @include "includes/lanes"

--- A parent of a lane that is let go: at its place, or in front when it has started and holds it.
local function releaseIntoLane(queue, gate, id, field, due_ms)
  local has_started = holdsLane(queue, laneOf(field), id)
  if due_ms then
    putOffInLane(queue, field, id, due_ms, has_started)
  elseif has_started then
    returnToLane(queue, field, id)
  else
    enterLane(queue, field, id, PLAIN)
  end
  wakeForLanes(queue, gate)
end

--- The parent that a child names. What cannot be read must not keep the child from ending: then its
--- key tells where the parent is.
local function parentOf(parent_key, parent_json)
  local is_read, parent = pcall(cjson.decode, parent_json or "")
  if is_read and type(parent) == "table" and type(parent.id) == "string"
      and type(parent.queueKey) == "string" then
    return { key = parent_key, id = parent.id, queue = queueAt(parent.queueKey), flags = parent }
  end
  local base, id = string.match(parent_key, "^(.+):([^:]+)$")
  return { key = parent_key, id = id or "", queue = queueAt(base or parent_key), flags = {} }
end

--- Let a parent go that waits for children: to its delay, its priority, or the front of the list.
local function releaseParent(parent, now)
  local queue = parent.queue
  if redis.call("ZREM", queue.waiting_children, parent.id) == 0 then return end
  local gate = readGate(queue)
  local settings = redis.call("HMGET", parent.key, "priority", "delay", "x.lane")
  local delay = tonumber(settings[2]) or 0
  if delay > 0 then
    emit(queue, "delayed", "jobId", parent.id, "delay", now + delay)
    if settings[3] then
      releaseIntoLane(queue, gate, parent.id, settings[3], now + delay)
    else
      redis.call("ZADD", queue.delayed, (now + delay) * 4096, parent.id)
      wakeWhenDue(queue)
    end
    return
  end
  if settings[3] then
    releaseIntoLane(queue, gate, parent.id, settings[3])
  else
    placeReady(queue, gate, parent.id, tonumber(settings[1]) or 0, "RPUSH")
    wake(queue, gate)
  end
  emit(queue, "waiting", "jobId", parent.id, "prev", "waiting-children")
end

--- Let a parent go because a child of it was removed: to the front, whatever its priority.
local function releaseParentPlainly(parent, silently)
  local queue = parent.queue
  if redis.call("ZREM", queue.waiting_children, parent.id) == 0 then return end
  local gate = readGate(queue)
  local lane = redis.call("HGET", parent.key, "x.lane")
  if lane then
    releaseIntoLane(queue, gate, parent.id, lane)
  else
    redis.call("RPUSH", readyList(queue, gate), parent.id)
    wake(queue, gate)
  end
  if not silently then
    emit(queue, "waiting", "jobId", parent.id, "prev", "waiting-children")
  end
end

local function hasNoChildrenLeft(parent)
  return redis.call("SCARD", parent.key .. ":dependencies") == 0
end

--- A removed child no longer holds its parent back.
local function unlinkFromParent(child_key, parent_key, parent_json, silently)
  if not parent_key or not parent_json or parent_key == "" then return end
  if redis.call("SREM", parent_key .. ":dependencies", child_key) == 0 then return end
  local parent = parentOf(parent_key, parent_json)
  if hasNoChildrenLeft(parent) then
    releaseParentPlainly(parent, silently)
  end
end

local function childCompleted(parent, child_key, return_value, now)
  if redis.call("SREM", parent.key .. ":dependencies", child_key) == 0 then return end
  redis.call("HSET", parent.key .. ":processed", child_key, return_value)
  if hasNoChildrenLeft(parent) then
    releaseParent(parent, now)
  end
end

--- A child failed under the policy "fail the parent": whoever takes the parent next fails it.
local function failParent(parent, child_key, now)
  redis.call("ZADD", parent.key .. ":unsuccessful", now, child_key)
  if redis.call("EXISTS", parent.key) == 0 then return end
  local queue = parent.queue
  local reason = "child " .. child_key .. " failed"
  if redis.call("ZSCORE", queue.waiting_children, parent.id) then
    redis.call("HSET", parent.key, "defa", reason)
    releaseParent(parent, now)
  elseif redis.call("ZREM", queue.delayed, parent.id) == 1 then
    redis.call("HSET", parent.key, "defa", reason, "delay", 0)
    redis.call("ZADD", queue.waiting_children, now, parent.id)
    releaseParent(parent, now)
  elseif not redis.call("ZSCORE", queue.failed, parent.id) then
    redis.call("HSET", parent.key, "defa", reason)
  end
end

local function childFailed(parent, child_key, reason, now)
  local flags = parent.flags
  if not (flags.fpof or flags.cpof or flags.idof or flags.rdof) then return end
  if redis.call("SREM", parent.key .. ":dependencies", child_key) == 0 then return end
  if flags.fpof then
    failParent(parent, child_key, now)
  elseif flags.cpof then
    redis.call("HSET", parent.key .. ":failed", child_key, reason)
    releaseParent(parent, now)
  else
    if flags.idof then
      redis.call("HSET", parent.key .. ":failed", child_key, reason)
    end
    if hasNoChildrenLeft(parent) then
      releaseParent(parent, now)
    end
  end
end
