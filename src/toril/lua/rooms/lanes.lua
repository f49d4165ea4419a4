--- Lanes: one job at a time for each key, in order. Everything that puts a job into a lane, takes one
--- out or lets the next one run is written here, once.
---
---   lanes:waiting   zset   the jobs that wait, of all lanes, by lane and place (all scores are 0)
---   lanes:delayed   zset   the jobs that wait for a time, by that time in ms
---   lanes:aside     zset   the same jobs by lane and place (all scores are 0): each lane finds its own
---   lanes:held      hash   lane -> the turn it had last, and below it the jobs that hold the lane
---   lanes:ready     zset   the lanes from which a job may be taken now, by their next turn
---   lanes:later     zset   the lanes that a rate limit holds back, by the time at which it ends
---   lanes:index     zset   the lanes that have a job waiting or a holder, by since when; after them
---                          those that only have jobs aside
---   lanes:rate:…    string jobs of a lane started in this window, if its rate is limited; the highest
---                          number while a handler holds it back
---   lanes:diverting hash   lane -> what must go to the dead letters, as JSON
---   lanes:settings  hash   lane -> what an operator or a failure said about it, as JSON
---   de              set    the ids of the jobs that wait, of all lanes, for a turn or for a time
---
--- BullMQ's `removeOrphanedJobs` deletes every job that is not named by a key it knows. It knows `de`,
--- the prefix of its deduplication keys, and keeps nothing under that name itself.
---
--- Only `lanes:held` says whether a lane is taken: there is no counter that could drift.

--- Added to a lane's time in the index if all of its jobs are aside.
local DORMANT = 1000000000000000

--- What applies to all lanes of the queue, read once per call. `has_ready` says at the end of a call
--- whether to wake a worker; a script that finds no `queue.lanes` has not touched any lane.
function lanes.of(queue)
  memory.lanes = memory.lanes or {}
  local lane_state = memory.lanes[queue.base]
  if lane_state then
    queue.lanes = lane_state
    return lane_state
  end
  local meta = hashes.read(queue.meta, "toril.laneConcurrency", "toril.laneMax",
    "toril.laneDuration", "toril.laneTurn", "toril.lanesHeldUntil", "toril.lanesShared")
  local settings, aside, later = queue["lanes:settings"], queue["lanes:aside"], queue["lanes:later"]
  local has_any = redis.call("EXISTS", settings, aside, later) > 0
  local now = clock.now()
  lane_state = {
    queue = queue,
    capacity = tonumber(meta["toril.laneConcurrency"]) or 1,
    max = tonumber(meta["toril.laneMax"]),
    duration = tonumber(meta["toril.laneDuration"]),
    was_shared = meta["toril.lanesShared"] ~= false, -- could several jobs ever hold any lane?
    weight = 1,
    turn = tonumber(meta["toril.laneTurn"]) or 0,
    held_until = tonumber(meta["toril.lanesHeldUntil"]) or 0, -- until when a handler holds some lane back
    has_settings = has_any and redis.call("EXISTS", settings) == 1,
    has_aside = has_any and redis.call("EXISTS", aside) == 1,
    has_later = has_any and redis.call("EXISTS", later) == 1,
    has_ready = false,
    heads = {}, -- of the lanes that this call has looked at; false for none
    indexed = {}, -- the lanes that are certainly in the index, and not dormant
    now = now
  }
  memory.lanes[queue.base] = lane_state
  queue.lanes = lane_state
  return lane_state
end

function lanes.settings(queue, lane)
  if not lanes.of(queue).has_settings then return nil end
  local is_read, own = pcall(cjson.decode, redis.call("HGET", queue["lanes:settings"], lane) or "")
  return is_read and type(own) == "table" and own or nil
end

--- What applies to one lane: its own settings take precedence over the queue's.
function lanes.rules(queue, lane)
  local lane_state = lanes.of(queue)
  local own = lanes.settings(queue, lane)
  if not own then return lane_state end
  return {
    capacity = tonumber(own.concurrency) or lane_state.capacity,
    max = tonumber(own.max) or lane_state.max,
    duration = own.max and tonumber(own.duration) or lane_state.duration,
    weight = tonumber(own.weight) or 1,
    is_stopped = own.paused or own.halted
  }
end

function lanes.saveSettings(queue, lane, settings)
  if next(settings) == nil then
    redis.call("HDEL", queue["lanes:settings"], lane)
  else
    redis.call("HSET", queue["lanes:settings"], lane, cjson.encode(settings))
    lanes.of(queue).has_settings = true
  end
end

--- The last turn and the ids in a value of `lanes:held`; no ids if it is damaged.
local function readHolders(value)
  local line = string.find(value, "\n", 1, true)
  if not line then return 0, {} end
  local turn, rest = tonumber(string.sub(value, 1, line - 1)) or 0, string.sub(value, line + 1)
  if not string.find(rest, "\n", 1, true) then return turn, { rest } end
  local ids = {}
  for id in string.gmatch(rest, "[^\n]+") do
    ids[#ids + 1] = id
  end
  return turn, ids
end

--- Who holds the lane: its last turn, and the ids.
function lanes.holders(queue, lane)
  local value = redis.call("HGET", queue["lanes:held"], lane)
  if not value then return 0, {} end
  return readHolders(value)
end


function lanes.saveHolders(queue, lane, turn, ids)
  if #ids == 0 then
    redis.call("HDEL", queue["lanes:held"], lane)
  else
    redis.call("HSET", queue["lanes:held"], lane,
      string.format("%.17g", turn) .. "\n" .. table.concat(ids, "\n"))
  end
end

function lanes.isHeldBy(queue, lane, id)
  local _, ids = lanes.holders(queue, lane)
  for _, holder in ipairs(ids) do
    if holder == id then return true end
  end
  return false
end

--- Release the lane for one job; returns the lane's last turn, how many still hold it, and whether the
--- job held it.
local function dropLaneHolder(queue, lane, id)
  local turn, ids = lanes.holders(queue, lane)
  for i, holder in ipairs(ids) do
    if holder == id then
      table.remove(ids, i)
      lanes.saveHolders(queue, lane, turn, ids)
      return turn, #ids, true
    end
  end
  return turn, #ids, false
end

function lanes.head(queue, lane)
  local heads = lanes.of(queue).heads
  if heads[lane] == nil then
    heads[lane] = redis.call("ZRANGEBYLEX", queue["lanes:waiting"], "[" .. lane .. " ",
      "(" .. lane .. "!", "LIMIT", 0, 1)[1] or false
  end
  return heads[lane]
end

--- Note that a job waits in a lane, so that BullMQ does not mistake it for an orphan. A script that adds
--- many collects their ids in `queue.keeping` and writes them all at once.
function lanes.keepJob(queue, id)
  local keeping = rawget(queue, "keeping")
  if keeping then
    keeping[#keeping + 1] = id
  else
    redis.call("SADD", queue.de, id)
  end
end

function lanes.keepCollected(queue)
  redis.call("SADD", queue.de, unpack(queue.keeping))
  queue.keeping = {}
end

--- Jobs that no longer wait in a lane: another key names them now, or they are gone.
function lanes.dropKept(queue, ...)
  local keeping = rawget(queue, "keeping")
  if keeping and #keeping > 0 then lanes.keepCollected(queue) end
  redis.call("SREM", queue.de, ...)
end

--- Does `de` name as many jobs as wait, including a random sample of them? Workers of an older version
--- neither write nor clear it, and a job they added can offset one they took in the count.
function lanes.isAllKept(queue)
  local words = redis.call("SMISMEMBER", queue.de, "groups", "compensation")
  local kept, waiting = redis.call("SCARD", queue.de) - words[1] - words[2], 0
  for _, set in ipairs({ queue["lanes:waiting"], queue["lanes:delayed"] }) do
    waiting = waiting + redis.call("ZCARD", set)
    for _, member in ipairs(redis.call("ZRANDMEMBER", set, 20)) do
      if redis.call("SISMEMBER", queue.de, laneNames.idIn(member)) == 0 then return false end
    end
  end
  return kept == waiting
end

--- Write members of `lanes:waiting`; nothing else does, so the heads already read stay valid.
function lanes.addToWaiting(queue, lane, member)
  redis.call("ZADD", queue["lanes:waiting"], "0", member)
  lanes.of(queue).heads[lane] = nil
end

function lanes.removeFromWaiting(queue, lane, ...)
  lanes.of(queue).heads[lane] = nil
  return redis.call("ZREM", queue["lanes:waiting"], ...)
end

--- Write members of `lanes:delayed`; nothing else does, so a lane finds its own in `lanes:aside`.
function lanes.putAside(queue, lane, member, due_ms)
  local lane_state = lanes.of(queue)
  lanes.keepJob(queue, laneNames.idIn(member))
  lane_state.has_aside = true
  redis.call("ZADD", queue["lanes:delayed"], due_ms, member)
  redis.call("ZADD", queue["lanes:aside"], "0", member)
  redis.call("ZADD", queue["lanes:index"], "NX", clock.stamp(lane_state.now + DORMANT), lane)
end

function lanes.takeFromAside(queue, ...)
  lanes.of(queue).has_aside = true -- there is a lane that may be dormant, though nothing may be left
  redis.call("ZREM", queue["lanes:aside"], ...)
  return redis.call("ZREM", queue["lanes:delayed"], ...)
end

local function hasAside(queue, lane)
  return lanes.of(queue).has_aside and redis.call("ZRANGEBYLEX", queue["lanes:aside"],
    "[" .. lane .. " ", "(" .. lane .. "!", "LIMIT", 0, 1)[1] ~= nil
end

--- A lane has no waiting job and no holder: forget it, or mark it dormant.
local function retireLane(queue, lane)
  local index = queue["lanes:index"]
  lanes.of(queue).indexed[lane] = nil
  if not hasAside(queue, lane) then
    redis.call("ZREM", index, lane)
  elseif (tonumber(redis.call("ZSCORE", index, lane) or nil) or 0) < DORMANT then
    redis.call("ZADD", index, clock.stamp(lanes.of(queue).now + DORMANT), lane)
  end
end

--- Note in the index that a job of the lane waits. Returns whether the lane was not there before,
--- and whether it was dormant.
local function indexLane(queue, lane)
  local lane_state = lanes.of(queue)
  if lane_state.indexed[lane] then return false, false end
  lane_state.indexed[lane] = true
  local index = queue["lanes:index"]
  if redis.call("ZADD", index, "NX", clock.stamp(lane_state.now), lane) == 1 then return true, false end
  if not lane_state.has_aside or tonumber(redis.call("ZSCORE", index, lane)) < DORMANT then
    return false, false
  end
  redis.call("ZADD", index, clock.stamp(lane_state.now), lane)
  return false, true
end

local HELD_LANE = 9007199254740991

--- Do rate limits or holds affect lanes without a limit of their own?
local function hasLimits(lane_state)
  return lane_state.max or lane_state.held_until > lane_state.now
end

--- Let nobody take from the lane for a while: the longest wait asked for counts, and a window is not
--- cut short. Workers of an older version ignore this.
function lanes.hold(queue, field, asked_ms)
  local lane_state = lanes.of(queue)
  local key = queue.base .. ":lanes:rate:" .. laneNames.laneOf(field)
  local duration_ms = math.max(asked_ms, redis.call("PTTL", key))
  redis.call("SET", key, string.format("%.0f", HELD_LANE), "PX", duration_ms)
  lane_state.held_until = math.max(lane_state.held_until, lane_state.now + duration_ms)
  redis.call("HSET", queue.meta, "toril.lanesHeldUntil", string.format("%.0f", lane_state.held_until))
end

--- Remove such a hold; returns whether there was one.
function lanes.free(queue, lane)
  local key = queue.base .. ":lanes:rate:" .. lane
  if tonumber(redis.call("GET", key) or 0) < HELD_LANE then return false end
  redis.call("DEL", key)
  return true
end

--- How long the rate limit, or a handler, holds the lane back.
local function laneLimitedFor(queue, lane, rules)
  if not rules.max and not hasLimits(lanes.of(queue)) then return 0 end
  local key = queue.base .. ":lanes:rate:" .. lane
  local started = tonumber(redis.call("GET", key) or 0)
  if started < (rules.max or HELD_LANE) then return 0 end
  local left_ms = redis.call("PTTL", key)
  if started < HELD_LANE and left_ms > (rules.duration or 1000) then
    -- The clock was set back, or the limit changed: the window is over.
    redis.call("DEL", key)
    return 0
  end
  return math.max(left_ms, 0)
end

function lanes.countStart(queue, lane, rules)
  if not rules.max then return end
  local key = queue.base .. ":lanes:rate:" .. lane
  if redis.call("INCR", key) == 1 then
    redis.call("PEXPIRE", key, rules.duration or 1000)
  end
end

--- Tell an idle worker when the next lane or the next job of one is due. The marker has a separate
--- member for that, so that the code for plain delayed jobs need not look here.
function lanes.wakeWhenDue(queue)
  local due
  for _, set in ipairs({ queue["lanes:delayed"], queue["lanes:later"] }) do
    local first = redis.call("ZRANGE", set, 0, 0, "WITHSCORES")
    if first[2] and (not due or tonumber(first[2]) < due) then due = tonumber(first[2]) end
  end
  if due then redis.call("ZADD", queue.marker, due, "2") end
end

--- Put a lane where it belongs now: among the ready ones, among those that wait for a time, or
--- nowhere. `holders` is how many hold it, `turn` its last turn. Returns whether it is ready and was
--- not before.
function lanes.place(queue, lane, holders, turn)
  local lane_state = lanes.of(queue)
  local rules = lanes.rules(queue, lane)
  local ready = queue["lanes:ready"]
  if not lanes.head(queue, lane) then
    redis.call("ZREM", ready, lane)
    if lane_state.has_later then redis.call("ZREM", queue["lanes:later"], lane) end
    if holders == 0 then retireLane(queue, lane) end
    return false
  end
  if rules.is_stopped or holders >= rules.capacity then
    redis.call("ZREM", ready, lane)
    return false
  end
  local limited_ms = laneLimitedFor(queue, lane, rules)
  if limited_ms > 0 then
    redis.call("ZREM", ready, lane)
    redis.call("ZADD", queue["lanes:later"], lane_state.now + limited_ms, lane)
    lane_state.has_later = true
    lanes.wakeWhenDue(queue)
    return false
  end
  -- Its limit may have been removed.
  if lane_state.has_later then redis.call("ZREM", queue["lanes:later"], lane) end
  lane_state.has_ready = true
  -- A turn is the end of a lane's share: later lanes come after it, so none starves.
  return redis.call("ZADD", ready, "NX", math.max(lane_state.turn, turn or 0) + 1 / rules.weight, lane) == 1
end

--- The `x.lane` of a job; a damaged one is written again, since no script could read its member.
local function soundPlace(queue, field, id)
  if #field > 32 and not string.find(string.sub(field, 1, 32), "%D")
      and not string.find(field, "[ %c]", 33) then
    return field
  end
  field = string.rep("0", 32) .. laneNames.write(field == "" and "damaged" or field)
  redis.call("HSET", queue.base .. ":" .. id, "x.lane", field)
  return field
end

--- Let a job wait in its lane, at its place or, once it has `STARTED`, before all others. If it was
--- already waiting there for a time, it `is_kept`.
function lanes.enter(queue, field, id, mark, is_kept)
  field = soundPlace(queue, field, id)
  local lane_state = lanes.of(queue)
  if not is_kept then lanes.keepJob(queue, id) end
  local lane = laneNames.laneOf(field)
  local member = laneNames.member(field, id, mark)
  lanes.addToWaiting(queue, lane, member)
  local is_new, was_dormant = indexLane(queue, lane)
  if is_new then lane_state.heads[lane] = member end
  if is_new or was_dormant or lane_state.capacity > 1 or lane_state.has_settings or mark == laneNames.STARTED then
    local turn, ids = 0, {}
    if not is_new then turn, ids = lanes.holders(queue, lane) end
    lanes.place(queue, lane, #ids, turn)
  end
end

--- The job is done with its lane: the next one may go.
function lanes.release(queue, field, id)
  local lane = laneNames.laneOf(field)
  local turn, holders = dropLaneHolder(queue, lane, id)
  lanes.place(queue, lane, holders, turn)
end

--- A turn as text. The lanes that one call releases get few different ones, each written once.
local function turnText(lane_state, turn)
  if turn ~= lane_state.last_turn then
    lane_state.last_turn, lane_state.last_text = turn, string.format("%.17g", turn)
  end
  return lane_state.last_text
end

--- The same for many jobs at once: `released` = { field, id } each. A lane that only one job may hold
--- at a time is ready, or held, or waits for a time, and never two of these.
function lanes.releaseAll(queue, released)
  if #released == 0 then return end
  local lane_state = lanes.of(queue)
  if lane_state.capacity > 1 or lane_state.has_settings or hasLimits(lane_state) or lane_state.has_later then
    for _, job in ipairs(released) do
      lanes.release(queue, job[1], job[2])
    end
    return
  end
  local names = {}
  for i, job in ipairs(released) do
    names[i] = laneNames.laneOf(job[1])
  end
  local values = redis.call("HMGET", queue["lanes:held"], unpack(names))
  local freed, ready, empty = {}, {}, {}
  for i, lane in ipairs(names) do
    local turn, ids = 0, {}
    if values[i] then turn, ids = readHolders(values[i]) end
    if #ids > 1 then
      -- Several could hold it until its concurrency was lowered: the others continue.
      lanes.release(queue, released[i][1], released[i][2])
    elseif #ids == 0 or ids[1] == released[i][2] then
      if ids[1] then freed[#freed + 1] = lane end
      if lanes.head(queue, lane) then
        ready[#ready + 1], ready[#ready + 2] = turnText(lane_state, math.max(lane_state.turn, turn) + 1), lane
      elseif lane_state.has_aside then
        retireLane(queue, lane)
      else
        empty[#empty + 1] = lane
        lane_state.indexed[lane] = nil
      end
    end
  end
  if #freed > 0 then redis.call("HDEL", queue["lanes:held"], unpack(freed)) end
  if #empty > 0 then redis.call("ZREM", queue["lanes:index"], unpack(empty)) end
  if #ready > 0 then
    redis.call("ZADD", queue["lanes:ready"], "NX", unpack(ready))
    lane_state.has_ready = true
  end
end

--- A job that has started goes back to the front of its lane, and is next.
function lanes.giveBack(queue, field, id)
  dropLaneHolder(queue, laneNames.laneOf(field), id)
  lanes.enter(queue, field, id, laneNames.STARTED)
end

--- Postpone a job of a lane. With `keeps_lane` it holds its lane meanwhile: nobody overtakes it.
function lanes.putOff(queue, field, id, due_ms, keeps_lane)
  field = soundPlace(queue, field, id)
  lanes.putAside(queue, laneNames.laneOf(field), laneNames.member(field, id, keeps_lane and laneNames.STARTED or laneNames.PLAIN), due_ms)
  if not keeps_lane then lanes.release(queue, field, id) end
  lanes.wakeWhenDue(queue)
end

--- Is the job waiting in its lane, for its turn or for a time?
function lanes.hasWaiting(queue, field, id)
  for _, mark in ipairs({ laneNames.PLAIN, laneNames.STARTED }) do
    local member = laneNames.member(field, id, mark)
    if redis.call("ZSCORE", queue["lanes:waiting"], member)
        or redis.call("ZSCORE", queue["lanes:delayed"], member) then
      return true
    end
  end
  return false
end

--- Take a job that waits in its lane out of it; returns "wait" or "delayed", or nothing.
function lanes.pull(queue, field, id)
  local plain, started = laneNames.member(field, id, laneNames.PLAIN), laneNames.member(field, id, laneNames.STARTED)
  if lanes.removeFromWaiting(queue, laneNames.laneOf(field), plain, started) > 0 then
    lanes.dropKept(queue, id)
    lanes.release(queue, field, id)
    return "wait"
  end
  if lanes.takeFromAside(queue, plain, started) > 0 then
    lanes.dropKept(queue, id)
    lanes.release(queue, field, id)
    return "delayed"
  end
  return nil
end

--- Take a member that waits out of its lane for good, whatever is left of its job: whoever deleted the
--- hash may have known of no lanes.
function lanes.discard(queue, member)
  local lane, _, _, id = laneNames.readMember(member)
  if lanes.removeFromWaiting(queue, lane, member) == 0 then lanes.takeFromAside(queue, member) end
  lanes.dropKept(queue, id)
  local turn, holders = dropLaneHolder(queue, lane, id)
  lanes.place(queue, lane, holders, turn)
end

--- Take a job out of its lane for good, whether it waits there or holds it; returns as above.
function lanes.leave(queue, field, id)
  local place = lanes.pull(queue, field, id)
  if not place and lanes.isHeldBy(queue, laneNames.laneOf(field), id) then lanes.release(queue, field, id) end
  return place
end

--- Let a job of a lane that is no longer aside wait for its turn.
function lanes.promote(queue, gate, field, id, mark)
  if mark == laneNames.STARTED then dropLaneHolder(queue, laneNames.laneOf(field), id) end
  lanes.enter(queue, field, id, mark, true)
  journal.emitTrimmed(queue, gate, "waiting", "jobId", id, "prev", "delayed")
  -- Who deleted the job knew of no lanes: a hash that held only this would keep its id from others.
  if redis.call("EXISTS", queue.base .. ":" .. id) == 1 then
    redis.pcall("HSET", queue.base .. ":" .. id, "delay", 0)
  end
end

--- The `x.lane` and the mark of a job of a lane that waits for a time, or nothing.
function lanes.findDelayed(queue, id)
  local field = redis.call("HGET", queue.base .. ":" .. id, "x.lane")
  if not field then return nil end
  for _, mark in ipairs({ laneNames.PLAIN, laneNames.STARTED }) do
    if redis.call("ZSCORE", queue["lanes:delayed"], laneNames.member(field, id, mark)) then
      return field, mark
    end
  end
  return nil
end

--- Take such a job; returns the same. The caller puts it elsewhere or releases the lane.
function lanes.takeDelayed(queue, id)
  local field, mark = lanes.findDelayed(queue, id)
  if field then lanes.takeFromAside(queue, laneNames.member(field, id, mark)) end
  return field, mark
end

--- Its head failed for good: nothing in the lane runs until an operator resumes it.
function lanes.halt(queue, field, id, now)
  local settings = lanes.settings(queue, laneNames.laneOf(field)) or {}
  settings.halted, settings.since = id, settings.since or now
  lanes.saveSettings(queue, laneNames.laneOf(field), settings)
end

--- What waits in the lane now must go to the dead letters; `divertLane` does that, and the lane does
--- not move until then.
function lanes.divert(queue, field, id, dead_letter_queue)
  redis.call("HSET", queue["lanes:diverting"], laneNames.laneOf(field), cjson.encode({ job = id,
    queue = dead_letter_queue, until_seq = tonumber(redis.call("GET", queue.id) or 0) }))
end

--- Why what waits in the lane goes to the dead letters: { job (which failed), queue, until_seq }. A
--- damaged entry is forgotten, and diverts nothing.
function lanes.diversionOf(queue, lane)
  local told = redis.call("HGET", queue["lanes:diverting"], lane)
  if not told then return nil end
  local is_read, cause = pcall(cjson.decode, told)
  if is_read and type(cause) == "table" and type(cause.job) == "string"
      and type(cause.queue) == "string" and type(cause.until_seq) == "number" then
    return cause
  end
  redis.call("HDEL", queue["lanes:diverting"], lane)
  return nil
end

--- The place of a new job in its lane, kept in its `x.lane`: `lane` is any text, and `order_ms` takes
--- precedence over arrival.
function lanes.newPlace(queue, lane, order_ms)
  return string.format("%016.0f%016.0f", order_ms, redis.call("INCR", queue.id)) .. laneNames.write(lane)
end

--- Let a new job into its lane; with `due_ms`, at that time.
function lanes.add(queue, id, field, due_ms)
  if due_ms then
    lanes.putAside(queue, laneNames.laneOf(field), laneNames.member(field, id, laneNames.PLAIN), due_ms)
    lanes.wakeWhenDue(queue)
  else
    lanes.enter(queue, field, id, laneNames.PLAIN)
  end
end

--- How many jobs of the lane wait, for their turn or for a time.
local function laneSize(queue, lane)
  local first, last = "[" .. lane .. " ", "(" .. lane .. "!"
  return redis.call("ZLEXCOUNT", queue["lanes:waiting"], first, last)
    + redis.call("ZLEXCOUNT", queue["lanes:aside"], first, last)
end

--- Does the lane hold as many jobs as it may? `coming` is how many the same call lets in before.
function lanes.isFull(queue, lane, most, coming)
  return laneSize(queue, laneNames.write(lane)) + (coming or 0) >= most
end

--- Returns a function that says, for one new job after another and before any is written, whether its
--- lane is full. Parents enter their lane when their children are done, so they take no room now.
function lanes.guard()
  local coming = {}
  return function(queue, job)
    if not job.lane then return false end
    local lane = queue.base .. " " .. job.lane
    local before = coming[lane] or 0
    if job.max_lane_size and lanes.isFull(queue, job.lane, job.max_lane_size, before) then
      return true
    end
    coming[lane] = before + (job.has_children and 0 or 1)
    return false
  end
end

--- A worker of the queue will look, and finds the lanes that became ready until now.
function lanes.told(queue)
  local lane_state = memory.lanes and memory.lanes[queue.base]
  if lane_state then lane_state.has_ready = false end
end

local function wakeFor(queue)
  places.wake(queue, rawget(queue, "gate") or gates.read(queue))
end

--- Wake a worker of each queue in which a lane became ready in this call and nobody was told of it.
--- Every call ends with this, since a lane may become ready wherever a job leaves it.
function lanes.wake()
  for _, lane_state in pairs(memory.lanes) do
    if lane_state.has_ready then
      -- The call is done: a queue whose marker is damaged must not make it fail, nor the others wait.
      pcall(wakeFor, lane_state.queue)
    end
  end
end
