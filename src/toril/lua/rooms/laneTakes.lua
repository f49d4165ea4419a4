--- Taking from lanes: one job from each ready lane, in the order of their turns.

--- How many jobs of lanes, and how many lanes, one call lets in.
local MOST_DUE_IN_LANES = 100

--- Let in the jobs of lanes and the lanes whose time has come.
function laneTakes.promoteDue(queue, gate, now)
  local delayed, later = queue["lanes:delayed"], queue["lanes:later"]
  local due = redis.call("ZRANGEBYSCORE", delayed, 0, now, "LIMIT", 0, MOST_DUE_IN_LANES)
  if #due > 0 then lanes.takeFromAside(queue, unpack(due)) end
  for _, member in ipairs(due) do
    local _, mark, field, id = laneNames.readMember(member)
    if id ~= "" then lanes.promote(queue, gate, field, id, mark) end
  end
  local lane_state = redis.call("ZRANGEBYSCORE", later, 0, now, "LIMIT", 0, MOST_DUE_IN_LANES)
  if #lane_state > 0 then redis.call("ZREM", later, unpack(lane_state)) end
  for _, lane in ipairs(lane_state) do
    local turn, ids = lanes.holders(queue, lane)
    lanes.place(queue, lane, #ids, turn)
  end
end

local NOBODY = {}

--- Who holds a lane that was ready. If several jobs could never hold one, nobody does: they need not be
--- read. If they could, and fewer may now, some lanes are still ready although they are full.
local function holdersOf(queue, lane, head, rules)
  if head and rules.capacity <= 1 and not lanes.of(queue).was_shared then return NOBODY end
  local _, ids = lanes.holders(queue, lane)
  return ids
end

--- Take the head of a lane that several jobs may hold at once; it may be ready again immediately.
local function takeShared(queue, lane, turn, head, id, ids)
  lanes.removeFromWaiting(queue, lane, head)
  ids[#ids + 1] = id
  lanes.saveHolders(queue, lane, turn, ids)
  lanes.place(queue, lane, #ids, turn)
end

--- Take the heads of lanes whose turn it is: `popped` = lane, turn, lane, turn, …; `taken` collects
--- them, and `taken.bytes` says how much data that is. Lanes beyond the limit keep their turn;
--- those that are full are ready again when one of their holders lets go.
local function takeHeads(queue, popped, taken, most_bytes)
  local heads, holders = {}, {}
  local lane_state = lanes.of(queue)
  for i = 1, #popped, 2 do
    local lane, turn = popped[i], tonumber(popped[i + 1])
    local head, rules = lanes.head(queue, lane), lanes.rules(queue, lane)
    local ids = holdersOf(queue, lane, head, rules)
    if taken.bytes >= most_bytes then
      redis.call("ZADD", queue["lanes:ready"], popped[i + 1], lane)
      lane_state.turn = taken.turn
    elseif not head then
      lanes.place(queue, lane, #ids, turn)
    elseif #ids < rules.capacity then
      local field, id = laneNames.readHead(head, lane)
      lanes.countStart(queue, lane, rules)
      if rules.capacity > 1 then
        takeShared(queue, lane, turn, head, id, ids)
      else
        heads[#heads + 1], holders[#holders + 1] = head, lane
        holders[#holders + 1] = popped[i + 1] .. "\n" .. id
        lane_state.heads[lane] = nil
      end
      local hash, size = takes.look(queue.base .. ":" .. id)
      taken[#taken + 1] = { id = id, field = field, hash = hash }
      taken.turn = math.max(taken.turn, turn)
      taken.bytes = taken.bytes + size
    end
  end
  if #heads == 0 then return end
  redis.call("ZREM", queue["lanes:waiting"], unpack(heads))
  redis.call("HSET", queue["lanes:held"], unpack(holders))
end

--- Up to `count` jobs of ready lanes, already in `active`: { id, field, hash, fence } each, without a
--- hash if it cannot be read. The fence is a number that grows with every take from the queue's lanes,
--- and so within each lane. Also returns how many bytes they have; it stops at `most_bytes`.
function laneTakes.pop(queue, count, most_bytes)
  local lane_state = lanes.of(queue)
  local taken, ids = { bytes = 0, turn = lane_state.turn }, {}
  while #taken < count and taken.bytes < most_bytes do
    local popped = redis.call("ZPOPMIN", queue["lanes:ready"], count - #taken)
    if #popped == 0 then break end
    lane_state.turn = math.max(lane_state.turn, tonumber(popped[#popped]))
    takeHeads(queue, popped, taken, most_bytes)
  end
  if #taken == 0 then return taken, 0 end
  for i, job in ipairs(taken) do
    ids[i] = job.id
  end
  redis.call("LPUSH", queue.active, unpack(ids))
  lanes.dropKept(queue, unpack(ids))
  redis.call("HSET", queue.meta, "toril.laneTurn", string.format("%.17g", lane_state.turn))
  local fence = redis.call("HINCRBY", queue.meta, "toril.laneFence", #ids) - #ids
  for i, job in ipairs(taken) do
    job.fence = fence + i
  end
  return taken, taken.bytes
end

--- Is the next plain job one of a lane, put there by somebody else? Then it has to be taken out first, or
--- its lane would be asked for a later one.
local function isStrayNext(queue)
  local id = redis.call("LINDEX", queue.wait, -1)
  return id and type(redis.pcall("HGET", queue.base .. ":" .. id, "x.lane")) == "string"
end

--- How many of `count` jobs should be plain ones: half, and the odd one goes to either side in turn;
--- all if no lane is ready, none if there are no plain ones.
function laneTakes.plainShare(queue, count)
  if redis.call("EXISTS", queue["lanes:ready"]) == 0 then return count end
  if redis.call("EXISTS", queue.wait, queue.prioritized) == 0 then return 0 end
  local half = math.floor(count / 2)
  if count % 2 == 0 then return half end
  local is_plain_turn = redis.call("HGET", queue.meta, "toril.lanesNext") ~= "plain"
  redis.call("HSET", queue.meta, "toril.lanesNext", is_plain_turn and "plain" or "lanes")
  if is_plain_turn or half == 0 and isStrayNext(queue) then return half + 1 end
  return half
end

--- When the next lane or job of a lane is due, or `due` if that is earlier; 0 means none.
function laneTakes.nextDue(queue, due)
  for _, set in ipairs({ queue["lanes:delayed"], queue["lanes:later"] }) do
    local first = redis.call("ZRANGE", set, 0, 0, "WITHSCORES")
    local at = tonumber(first[2])
    if at and (due == 0 or at < due) then due = at end
  end
  return due
end

--- How many jobs of the plain list, from the end that is taken next, are examined if there is a job of
--- a lane among them.
local NEAR = 300

--- Move the jobs of lanes near the end of the plain list into their lanes, all at once: a lane follows
--- its numbers, in whatever order somebody put them there. Jobs that hold their lanes stay.
local function admitNeighbours(queue)
  local ids = redis.call("LRANGE", queue.wait, -NEAR, -1) -- bounded: NEAR
  local others = {}
  for _, id in ipairs(ids) do
    local field = redis.pcall("HGET", queue.base .. ":" .. id, "x.lane") -- or an id without a job
    if type(field) == "string" and not lanes.isHeldBy(queue, laneNames.laneOf(field), id) then
      lanes.enter(queue, field, id, laneNames.PLAIN)
    else
      others[#others + 1] = id
    end
  end
  if #others == #ids then return end
  redis.call("LTRIM", queue.wait, 0, -#ids - 1)
  if #others > 0 then redis.call("RPUSH", queue.wait, unpack(others)) end
end

--- A job of a lane was in the plain list: somebody else put it there. If it holds its lane, it may run;
--- else it goes where it belongs, with others like it nearby. Returns its fence, or nothing.
function laneTakes.admitStray(queue, field, id)
  if lanes.isHeldBy(queue, laneNames.laneOf(field), id) then
    return redis.call("HINCRBY", queue.meta, "toril.laneFence", 1)
  end
  lanes.enter(queue, field, id, laneNames.PLAIN)
  local lane_state = lanes.of(queue)
  if not lane_state.has_looked_near then
    lane_state.has_looked_near = true
    admitNeighbours(queue)
  end
  return nil
end
