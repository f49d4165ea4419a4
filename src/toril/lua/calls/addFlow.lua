--[[
  addFlow: add whole trees of jobs, over any number of queues, all or nothing.

  The nodes come in an order in which parents stand before their children. A node that exists already,
  or is kept out by its deduplication id, stays as it is, and what is below it is not added. A parent
  whose children turn out to be done is let go at the end, when the whole tree is there.

  Keys      base
  Args      queues list of str (the qualified names), nodes list of {queue, above, id, name,
            delay, run_at, priority, lifo, timestamp, parent_key, parent, de, lane, order_ms, ordering_delay,
            max_lane_size, has_children, once},
            flight str?, request str?, is_late bool? (rooms/requests.lua)
            Both `queue` and `above`, which is the place of the parent, count from 1. A root with `once`
            ({key, ms}) is added at most once for that long, with all that is below it (calls/add.lua).
            After the map, raw, for each node: its data, its options as JSON.
  Returns   now ms, then for each node: 0 added, 1 an equal id exists, 2 left out with what is above
            it, or the id of the job that owns its deduplication id; or one refusal for all:
            the code and the place of the node
  Refuses   NO_PARENT           the parent of a root does not exist   ParentNotFoundError
            OTHER_PARENT        a job that exists has another parent   ParentConflictError
            LANE_FULL           a lane would hold more than max_lane_size jobs   LaneFullError
  Emits     added, waiting, delayed, waiting-children, duplicated, deduplicated
  Keeps     I1, I4
  Cost      O(nodes)
]]
local ADDED, EXISTS, LEFT_OUT = 0, 1, 2
local REMEMBERED = "remembered"

local function keyOf(homes, node)
  return homes[node.queue].queue.base .. ":" .. node.id
end

--- Why a node cannot be added, or nothing.
local function refuseNode(queue, node, is_there, isLaneFullFor)
  if node.lane and not is_there and isLaneFullFor(queue, node) then return refusals.LANE_FULL end
  if not node.parent_key then return nil end
  if not node.above and redis.call("EXISTS", node.parent_key) == 0 then return refusals.NO_PARENT end
  if is_there and parents.belongsElsewhere(queue, node) then return refusals.OTHER_PARENT end
  return nil
end

--- Is there a job with the id of a node, or was there one that is remembered?
local function isThere(homes, node)
  local queue = homes[node.queue].queue
  if node.once and once.isRemembered(queue, node.id, node.once.key) then return REMEMBERED end
  return redis.call("EXISTS", keyOf(homes, node)) == 1
end

--- Which nodes exist already: what is below one that does is left out with it. Or the first refusal.
local function lookAt(homes, nodes)
  local exists, isLaneFullFor = {}, lanes.guard()
  for i, node in ipairs(nodes) do
    if node.above and exists[node.above] then
      exists[i] = true
    else
      exists[i] = isThere(homes, node)
      local refusal = refuseNode(homes[node.queue].queue, node, exists[i], isLaneFullFor)
      if refusal then return nil, { refusal, i } end
    end
  end
  return exists, nil
end

local function addNode(to, node, is_there, data, opts, now)
  if is_there == REMEMBERED then return EXISTS end
  to.count = to.count + 1
  if node.once then once.remember(to.queue, node.id, node.once.key, node.once.ms) end
  if is_there then
    if node.parent_key then parents.attachChild(to.queue, node) end
    journal.emitTrimmed(to.queue, to.gate, "duplicated", "jobId", node.id)
    return EXISTS
  end
  local _, owner = arrivals.insert(to, node, data, opts, now)
  return owner or ADDED
end

--- Parents wait for children that are there; who has none left may run. Leaves first.
local function releaseParents(homes, nodes, results, now)
  for i = #nodes, 1, -1 do
    local node, parent = nodes[i], nil
    if node.has_children and results[i + 1] == ADDED then
      parent = { key = keyOf(homes, node), id = node.id, queue = homes[node.queue].queue }
    elseif results[i + 1] == EXISTS and node.parent_key and not node.above then
      parent = parents.of(node.parent_key, node.parent)
    end
    if parent and parents.hasNoChildrenLeft(parent) then parents.release(parent, now) end
  end
end

local function addTrees(homes, a, ARGV, now)
  local exists, refusal = lookAt(homes, a.nodes)
  if refusal then return refusal end
  for _, to in ipairs(homes) do
    to.gate = gates.read(to.queue)
  end
  local results, are_all_added = { now }, true
  for i, node in ipairs(a.nodes) do
    if node.above and results[node.above + 1] ~= ADDED then
      results[i + 1] = LEFT_OUT
    else
      results[i + 1] = addNode(homes[node.queue], node, exists[i], ARGV[2 * i], ARGV[2 * i + 1], now)
    end
    are_all_added = are_all_added and results[i + 1] == ADDED
  end
  releaseParents(homes, a.nodes, results, now)
  for _, to in ipairs(homes) do
    arrivals.close(to)
  end
  return results, are_all_added
end

function calls.addFlow(KEYS, a, ARGV)
  local base = unpack(KEYS)
  local now, homes = clock.now(), {}
  for i, name in ipairs(a.queues) do
    homes[i] = arrivals.at(queues.at(name))
  end
  return requests.makeOnce(queues.at(base), a, now, function() return addTrees(homes, a, ARGV, now) end,
    function(at) return requests.allAdded(at, #a.nodes) end)
end
