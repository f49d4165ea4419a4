#!lua
--[[
  addFlow: add whole trees of jobs, over any number of queues, all or nothing.

  The nodes come in an order in which parents stand before their children. A node that exists already,
  or is kept out by its deduplication id, stays as it is, and what is below it is not added. A parent
  whose children turn out to be done is let go at the end, when the whole tree is there.

  Keys      base
  Args      queues list of str (the qualified names), nodes list of {queue, above, id, name, custom,
            delay, run_at, priority, lifo, timestamp, parent_key, parent, de, lane, order_ms, ordering_delay,
            max_lane_size, has_children},
            flight str?, request str?, is_late bool? (includes/numbered.lua)
            Both `queue` and `above`, which is the place of the parent, count from 1.
            After the map, raw, for each node: its data, its options as JSON.
  Returns   now ms, then for each node: 0 added, 1 an equal id exists, 2 left out with what is above
            it, or the id of the job that owns its deduplication id; or one refusal for all:
            the code and the place of the node
  Refuses   -5  the parent of a root does not exist                       ParentNotFoundError
            -7  a job that exists has another parent                      ParentConflictError
            -121  a lane would hold more than max_lane_size jobs          LaneFullError
  Emits     added, waiting, delayed, waiting-children, duplicated, deduplicated
  Keeps     I1, I4
  Cost      O(nodes)
]]
local base = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/parents"
--- @include "includes/deleteJob"
--- @include "includes/deduplicate"
--- @include "includes/insertJob"
--- @include "includes/numbered"
--- @include "includes/attachChild"

local now = clock()
local queues = {}
for i, name in ipairs(a.queues) do
  queues[i] = { keys = queueAt(name), places = {}, counted = 0 }
end

local function keysOf(node)
  return queues[node.queue].keys
end

local ADDED, EXISTS, LEFT_OUT = 0, 1, 2
local isLaneFullFor
local function refuseNode(node, is_there)
  if node.lane and not is_there then
    isLaneFullFor = isLaneFullFor or laneGuard()
    if isLaneFullFor(keysOf(node), node) then return -121 end
  end
  if not node.parent_key then return nil end
  if not node.above and redis.call("EXISTS", node.parent_key) == 0 then return -5 end
  if is_there and belongsElsewhere(keysOf(node), node) then return -7 end
  return nil
end

local function addNode(node, is_there, data, opts)
  local queue = queues[node.queue]
  queue.counted = queue.counted + 1
  if is_there then
    if node.parent_key then attachChild(queue.keys, node) end
    emitTrimmed(queue.keys, queue.gate, "duplicated", "jobId", node.id)
    return EXISTS
  end
  local place, owner = insertJob(queue.keys, queue.gate, node, data, opts, now)
  if owner then return owner end
  queue.places[place] = true
  return ADDED
end

local function addTrees()
  local exists = {}
  for i, node in ipairs(a.nodes) do
    if node.above and exists[node.above] then
      exists[i] = true
    else
      exists[i] = redis.call("EXISTS", keysOf(node).base .. ":" .. node.id) == 1
      local refusal = refuseNode(node, exists[i])
      if refusal then return { refusal, i } end
    end
  end

  for _, queue in ipairs(queues) do
    queue.gate = readGate(queue.keys)
  end

  local results, are_all_added = { now }, true
  for i, node in ipairs(a.nodes) do
    if node.above and results[node.above + 1] ~= ADDED then
      results[i + 1] = LEFT_OUT
    else
      results[i + 1] = addNode(node, exists[i], ARGV[2 * i], ARGV[2 * i + 1])
    end
    are_all_added = are_all_added and results[i + 1] == ADDED
  end

  --- Parents wait for children that are there; who has none left may run. Leaves first.
  for i = #a.nodes, 1, -1 do
    local node = a.nodes[i]
    local parent_key = keysOf(node).base .. ":" .. node.id
    if node.has_children and results[i + 1] == ADDED then
      local parent = { key = parent_key, id = node.id, queue = keysOf(node) }
      if hasNoChildrenLeft(parent) then releaseParent(parent, now) end
    elseif results[i + 1] == EXISTS and node.parent_key and not node.above then
      local parent = parentOf(node.parent_key, node.parent)
      if hasNoChildrenLeft(parent) then releaseParent(parent, now) end
    end
  end

  for _, queue in ipairs(queues) do
    if queue.counted > 0 then redis.call("INCRBY", queue.keys.id, queue.counted) end
    if queue.places.ready then wake(queue.keys, queue.gate) end
    if queue.places.delayed then wakeWhenDue(queue.keys) end
    if queue.places.lane then wakeForLanes(queue.keys, queue.gate) end
  end
  return results, are_all_added
end

local function allAdded(at)
  local results = { at }
  for i = 1, #a.nodes do results[i + 1] = ADDED end
  return results
end

return makeOnce(queueAt(base), a, now, addTrees, allAdded)
