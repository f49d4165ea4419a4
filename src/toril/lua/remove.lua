#!lua flags=allow-oom
--[[
  remove: remove a job and, if asked, its children and theirs, leaves first.

  A family that fits into one call is removed whole or not at all. A larger one is removed a slice at
  a time: whole subtrees first, the job itself last, so that calling again goes on. A parent that is
  to be removed is not let go when its last child is gone.

  Keys      base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed,
            stalled, marker, meta, events, repeat
  Args      id str, children bool, slice int, resend bool?
  Returns   more (0 or 1), whether there was such a job (0 or 1)
  Refuses   -8    it is the pending iteration of a scheduler              SchedulerOwnsJobError
            -112  a worker holds it or a child of it                      JobLockedError
  Emits     removed, waiting
  Keeps     I1, I2
  Cost      O(slice), and the length of `wait` for each job that is removed from it
]]
local base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed, stalled, marker, meta, events, repeat_ = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/deleteJob"
--- @include "includes/parents"
--- @include "includes/deduplication"
--- @include "includes/removeJob"
--- @include "includes/scheduled"
--- @include "includes/takeOut"
--- @include "includes/splitKey"

local CHILDREN = {
  { suffix = ":dependencies", scan = "SSCAN", step = 1 },
  { suffix = ":processed", scan = "HSCAN", step = 2 },
  { suffix = ":failed", scan = "HSCAN", step = 2 },
  { suffix = ":unsuccessful", scan = "ZSCAN", step = 2 }
}

local spent, is_locked = 0, false
local leaves, seen = {}, {}

local function hasFamily(job)
  return redis.call("EXISTS", job .. ":dependencies", job .. ":processed", job .. ":failed",
    job .. ":unsuccessful") > 0
end

--- Note a job behind all of its descendants; false when there are more than one call may remove.
local function visit(queue, id, parent_key)
  local job = queue.base .. ":" .. id
  if seen[job] then return true end
  seen[job] = true
  is_locked = is_locked or redis.call("EXISTS", job .. ":lock") == 1
  spent = spent + 1 + math.floor(redis.call("LLEN", queue.wait) / 1000)
  local is_whole = true
  if a.children and hasFamily(job) then
    for _, kind in ipairs(CHILDREN) do
      local cursor = "0"
      repeat
        local page = redis.call(kind.scan, job .. kind.suffix, cursor, "COUNT", 100)
        cursor = page[1]
        for i = 1, #page[2], kind.step do
          if spent >= a.slice and #leaves > 0 then return false end
          local child_base, child_id = splitKey(page[2][i], queue.base)
          if child_base and not visit(queueAt(child_base), child_id, job) then
            is_whole = false
          end
        end
      until cursor == "0"
    end
  end
  if is_whole then
    leaves[#leaves + 1] = { queue = queue, id = id, parent_key = parent_key }
  end
  return is_whole
end

local queue = queueAt(base)
-- Other keys have names like those of jobs whose ids have colons: parts of a job, a scheduler.
local function isAnotherKey()
  if not string.find(a.id, ":", 1, true) then return false end
  local job = base .. ":" .. a.id
  local kind = redis.call("TYPE", job).ok
  if kind == "none" then return false end
  if kind ~= "hash" then return true end
  local scheduler = string.match(a.id, "^repeat:(.+)$")
  return scheduler and redis.call("ZSCORE", repeat_, scheduler) ~= false
    or redis.call("HEXISTS", job, "name") + redis.call("HEXISTS", job, "data") == 0
end

if isAnotherKey() then return { 0, 0 } end
if isNextIteration(queue, a.id) then return -8 end
local is_whole = visit(queue, a.id)
if is_locked then return -112 end

local gates = {}
local function gateOf(of)
  gates[of.base] = gates[of.base] or readGate(of)
  return gates[of.base]
end

local existed = false
for _, leaf in ipairs(leaves) do
  local previous = takeOut(leaf.queue, leaf.id)
  local parent_key = leaf.parent_key
  if parent_key then
    local child = leaf.queue.base .. ":" .. leaf.id
    redis.call("SREM", parent_key .. ":dependencies", child)
    redis.call("HDEL", parent_key .. ":processed", child)
    redis.call("HDEL", parent_key .. ":failed", child)
    redis.call("ZREM", parent_key .. ":unsuccessful", child)
  end
  existed = removeJob(leaf.queue, leaf.id, { was_active = previous == "active" })
  if existed then
    emitTrimmed(leaf.queue, gateOf(leaf.queue), "removed", "jobId", leaf.id, "prev", previous)
  end
  -- The next of its lane may run now, and nobody else would call for a worker.
  if rawget(leaf.queue, "lanes") then wakeForLanes(leaf.queue, gateOf(leaf.queue)) end
end
if not is_whole then return { 1, 1 } end
return { 0, (existed or a.resend) and 1 or 0 }
