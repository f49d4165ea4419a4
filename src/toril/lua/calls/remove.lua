--[[
  remove: remove a job and, if asked, its children and theirs, leaves first.

  A family that fits into one call is removed whole or not at all. A larger one is removed a slice at
  a time: whole subtrees first, the job itself last, so that calling again goes on. A parent that is
  to be removed is not let go when its last child is gone.

  Keys      base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed,
            stalled, marker, meta, events, repeat
  Args      id str, children bool, slice int, resend bool?
  Returns   more (0 or 1), whether there was such a job (0 or 1)
  Refuses   SCHEDULED           it is the pending iteration of a scheduler   SchedulerOwnsJobError
            LOCKED              a worker holds it or a child of it   JobLockedError
  Emits     removed, waiting
  Keeps     I1, I2
  Flags     allow-oom
  Cost      O(slice), and the length of `wait` for each job that is removed from it
]]
local CHILDREN = {
  { suffix = ":dependencies", scan = "SSCAN", step = 1 },
  { suffix = ":processed", scan = "HSCAN", step = 2 },
  { suffix = ":failed", scan = "HSCAN", step = 2 },
  { suffix = ":unsuccessful", scan = "ZSCAN", step = 2 }
}

local function hasFamily(job)
  return redis.call("EXISTS", job .. ":dependencies", job .. ":processed", job .. ":failed",
    job .. ":unsuccessful") > 0
end

local visit

--- Visit the children of one kind; false when some are left.
local function visitChildren(walk, queue, job, kind)
  local cursor, is_whole = "0", true
  repeat
    local page = redis.call(kind.scan, job .. kind.suffix, cursor, "COUNT", 100)
    cursor = page[1]
    for i = 1, #page[2], kind.step do
      if walk.spent >= walk.most and #walk.leaves > 0 then return false end
      local child_base, child_id = queues.split(page[2][i], queue.base)
      if child_base and not visit(walk, queues.at(child_base), child_id, job) then is_whole = false end
    end
  until cursor == "0"
  return is_whole
end

--- Note a job behind all of its descendants; false when there are more than one call may remove.
visit = function(walk, queue, id, parent_key)
  local job = queue.base .. ":" .. id
  if walk.seen[job] then return true end
  walk.seen[job] = true
  walk.is_locked = walk.is_locked or redis.call("EXISTS", job .. ":lock") == 1
  walk.spent = walk.spent + 1 + math.floor(redis.call("LLEN", queue.wait) / 1000)
  local is_whole = true
  if walk.has_children and hasFamily(job) then
    for _, kind in ipairs(CHILDREN) do
      if not visitChildren(walk, queue, job, kind) then
        is_whole = false
        if walk.spent >= walk.most then return false end
      end
    end
  end
  if is_whole then
    walk.leaves[#walk.leaves + 1] = { queue = queue, id = id, parent_key = parent_key }
  end
  return is_whole
end

--- Other keys have names like those of jobs whose ids have colons: parts of a job, a scheduler.
local function isAnotherKey(queue, id)
  if not string.find(id, ":", 1, true) then return false end
  local job = queue.base .. ":" .. id
  local kind = redis.call("TYPE", job).ok
  if kind == "none" then return false end
  if kind ~= "hash" then return true end
  local scheduler = string.match(id, "^repeat:(.+)$")
  return scheduler and redis.call("ZSCORE", queue["repeat"], scheduler) ~= false
    or redis.call("HEXISTS", job, "name") + redis.call("HEXISTS", job, "data") == 0
end

local function forgetChild(parent_key, child)
  redis.call("SREM", parent_key .. ":dependencies", child)
  redis.call("HDEL", parent_key .. ":processed", child)
  redis.call("HDEL", parent_key .. ":failed", child)
  redis.call("ZREM", parent_key .. ":unsuccessful", child)
end

--- Remove one job; returns whether it existed. `gate_by_base` keeps the gates that were read.
local function removeLeaf(leaf, gate_by_base)
  local queue, id = leaf.queue, leaf.id
  local previous = places.takeOut(queue, id)
  if leaf.parent_key then forgetChild(leaf.parent_key, queue.base .. ":" .. id) end
  local existed = jobs.remove(queue, id, { was_active = previous == "active" })
  local has_lanes = rawget(queue, "lanes")
  if not existed and not has_lanes then return existed end
  local gate = gate_by_base[queue.base] or gates.read(queue)
  gate_by_base[queue.base] = gate
  if existed then journal.emitTrimmed(queue, gate, "removed", "jobId", id, "prev", previous) end
  -- The next of its lane may run now, and nobody else would call for a worker.
  if has_lanes then lanes.wake(queue, gate) end
  return existed
end

function calls.remove(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed, stalled, marker, meta, events, repeat_ = unpack(KEYS)
  local queue = queues.at(base)
  if isAnotherKey(queue, a.id) then return { 0, 0 } end
  if schedules.isNextIteration(queue, a.id) then return refusals.SCHEDULED end
  local walk = { most = a.slice, has_children = a.children, spent = 0, leaves = {}, seen = {} }
  local is_whole = visit(walk, queue, a.id)
  if walk.is_locked then return refusals.LOCKED end
  local existed, gate_by_base = false, {}
  for _, leaf in ipairs(walk.leaves) do
    existed = removeLeaf(leaf, gate_by_base)
  end
  if not is_whole then return { 1, 1 } end
  return { 0, (existed or a.resend) and 1 or 0 }
end
