--- Removing jobs with their children and theirs, leaves first.
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

local MOST_ABOVE = 100

--- The parcel with a child for another slot, if it may not have been delivered. It was left where the
--- flow was added: at the queue of its parent, or of a job above that.
local function parcelWith(child, base, parent)
  for _ = 1, MOST_ABOVE do
    local id = parcels.carrying(base, child)
    parent = not id and redis.call("HGET", parent, "parentKey")
    base = parent and queues.split(parent, base)
    if id or not base or parcels.isAway(base) then return id end
  end
end

--- Have a child removed in its slot, with what is below it, unless somebody runs it. The parcel that brings
--- it there was left at the queue at `near`, for this parent; if it is still on its way, it arrives first.
function removals.removeElsewhere(base, id, near, parent, slice)
  parcels.send(base, id, { verb = "remove", id = id, slice = slice,
    after = parcelWith(base .. ":" .. id, near, parent) })
end

--- Visit the children of one kind; false if some are left.
local function visitChildren(walk, queue, job, kind)
  local cursor, is_whole = "0", true
  repeat
    local page = redis.call(kind.scan, job .. kind.suffix, cursor, "COUNT", 100)
    cursor = page[1]
    for i = 1, #page[2], kind.step do
      if walk.spent >= walk.most and #walk.leaves > 0 then return false end
      local child_base, child_id = queues.split(page[2][i], queue.base)
      if child_base and parcels.isAway(child_base) then
        walk.away[#walk.away + 1] = { base = child_base, id = child_id,
          after = parcelWith(child_base .. ":" .. child_id, queue.base, job) }
      elseif child_base and not visit(walk, queues.at(child_base), child_id, job) then is_whole = false end
    end
  until cursor == "0"
  return is_whole
end

--- Note a job after all of its descendants; false if there are more than one call may remove.
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
  if not existed then return false end
  local gate = gate_by_base[queue.base] or gates.read(queue)
  gate_by_base[queue.base] = gate
  journal.emitTrimmed(queue, gate, "removed", "jobId", id, "prev", previous)
  return true
end

--- Remove a job and, if asked, its family: entirely or not at all if it fits into one call, else a slice
--- of it, whole subtrees first. Returns a refusal if a worker holds one of them; else whether all are
--- gone, and whether there was such a job. Children in other slots are removed there, unless they run.
function removals.remove(queue, id, has_children, slice)
  local walk = { most = slice, has_children = has_children, spent = 0, leaves = {}, seen = {}, away = {} }
  local is_whole = visit(walk, queue, id)
  if walk.is_locked then return refusals.LOCKED end
  local existed, gate_by_base = false, {}
  for _, leaf in ipairs(walk.leaves) do
    existed = removeLeaf(leaf, gate_by_base)
  end
  for _, child in ipairs(is_whole and walk.away or {}) do
    parcels.send(child.base, child.id, { verb = "remove", id = child.id, slice = slice, after = child.after })
  end
  return nil, is_whole, existed
end
