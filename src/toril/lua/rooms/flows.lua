--- Whole trees of jobs, across any number of queues. Parents come before their children in the list of
--- nodes; `homes` are the arrivals at their queues (rooms/arrivals.lua).
---
--- What belongs to another slot is left as parcels, one for each tree there: the parent, which is here,
--- waits for the tree's root before the parcel is sent. A tree that arrives by parcel is added by the
--- same function, and in turn leaves parcels for what is below it in yet other slots.
local ADDED, EXISTS, LEFT_OUT = 0, 1, 2
local REMEMBERED = "remembered"

local function keyOf(homes, node)
  return homes[node.queue].queue.base .. ":" .. node.id
end

--- Why a node cannot be added, or nothing.
local function refuseNode(queue, node, is_there, isLaneFullFor)
  if node.lane and not is_there and isLaneFullFor(queue, node) then return refusals.LANE_FULL end
  if not node.parent_key then return nil end
  if not node.above and not parcels.isAway(node.parent_key)
      and redis.call("EXISTS", node.parent_key) == 0 then
    return refusals.NO_PARENT
  end
  if is_there and parents.belongsElsewhere(queue, node) then return refusals.OTHER_PARENT end
  return nil
end

--- Is there a job with the id of a node, or was there one that is remembered?
local function isThere(homes, node)
  local queue = homes[node.queue].queue
  if node.once and once.isRemembered(queue, node.id, node.once.key) then return REMEMBERED end
  return redis.call("EXISTS", keyOf(homes, node)) == 1
end

--- Which nodes already exist (what is below such a node is left out with it), or the first refusal.
--- What is sent elsewhere is checked there, with everything below it.
local function lookAt(homes, nodes)
  local exists, is_sent, isLaneFullFor = {}, {}, lanes.guard()
  for i, node in ipairs(nodes) do
    is_sent[i] = homes[node.queue].is_away or node.above and is_sent[node.above]
    if node.above and exists[node.above] then
      exists[i] = true
    elseif is_sent[i] then
      exists[i] = false
      local has_no_parent = not node.above and node.parent_key and not parcels.isAway(node.parent_key)
        and redis.call("EXISTS", node.parent_key) == 0
      if has_no_parent then return nil, { refusals.NO_PARENT, i } end
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

--- Parents wait for children that exist; those with none left may run. Leaves first.
local function releaseParents(homes, nodes, results, trees, now)
  for i = #nodes, 1, -1 do
    local node, parent = nodes[i], nil
    if trees.of[i] then
      parent = nil
    elseif node.has_children and results[i + 1] == ADDED then
      parent = { key = keyOf(homes, node), id = node.id, queue = homes[node.queue].queue }
    elseif results[i + 1] == EXISTS and node.parent_key and not node.above
        and not parcels.isAway(node.parent_key) then
      parent = parents.of(node.parent_key, node.parent)
    end
    if parent and parents.hasNoChildrenLeft(parent) then parents.release(parent, now) end
  end
end

--- Send trees to other slots. Their parents here wait for their roots.
local function sendTrees(trees)
  for _, tree in ipairs(trees) do
    local root = tree.nodes[1]
    local key = tree.queues[1] .. ":" .. root.id
    if root.parent_key then redis.call("SADD", root.parent_key .. ":dependencies", key) end
    parcels.send(tree.queues[1], root.id, { verb = "addFlow", queues = tree.queues,
      nodes = tree.nodes, words = tree.words }, key)
  end
end

--- Put a node of another slot into the tree that is sent there; `trees` remembers, by a node's position,
--- which tree it is in, and where.
local function pack(trees, homes, nodes, i, data, opts)
  local node, within = nodes[i], nodes[i].above and trees.of[nodes[i].above]
  local tree = within and within.tree
  if not tree then
    tree = { queues = {}, nodes = {}, words = {}, places = {} }
    trees[#trees + 1] = tree
  end
  local base, copy = homes[node.queue].queue.base, {}
  if not tree.places[base] then
    tree.queues[#tree.queues + 1] = base
    tree.places[base] = #tree.queues
  end
  for name, value in pairs(node) do copy[name] = value end
  copy.queue, copy.above = tree.places[base], within and within.place or nil
  local n = #tree.nodes + 1
  tree.nodes[n], tree.words[2 * n - 1], tree.words[2 * n] = copy, data, opts
  trees.of[i] = { tree = tree, place = n }
end

--- The homes of queues with these qualified names.
function flows.homes(names)
  local homes = {}
  for i, name in ipairs(names) do
    homes[i] = arrivals.at(queues.at(name))
    homes[i].is_away = parcels.isAway(name)
  end
  return homes
end

--- Add the trees, or return one refusal for all. `words` are each node's data and options, after the
--- first `skip`. Returns for each node what calls/addFlow.lua says, and whether all were added.
function flows.add(homes, nodes, words, skip, now)
  local exists, refusal = lookAt(homes, nodes)
  if refusal then return refusal end
  for _, to in ipairs(homes) do
    if not to.is_away then to.gate = gates.read(to.queue) end
  end
  local results, are_all_added, trees = { now }, true, { of = {} }
  for i, node in ipairs(nodes) do
    local to, data, opts = homes[node.queue], words[skip + 2 * i - 1], words[skip + 2 * i]
    if node.above and results[node.above + 1] ~= ADDED then
      results[i + 1] = LEFT_OUT
    elseif to.is_away or node.above and trees.of[node.above] then
      pack(trees, homes, nodes, i, data, opts)
      results[i + 1] = ADDED
    else
      results[i + 1] = addNode(to, node, exists[i], data, opts, now)
    end
    are_all_added = are_all_added and results[i + 1] == ADDED
  end
  sendTrees(trees)
  releaseParents(homes, nodes, results, trees, now)
  for _, to in ipairs(homes) do
    if not to.is_away then arrivals.close(to) end
  end
  return results, are_all_added
end

