--[[
  explain: everything that decides why a job is not running.

  Keys      base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed,
            limiter, meta, job, lanes_waiting, lanes_delayed, lanes_held, lanes_later, lanes_settings,
            in_transit
  Args      id str
  Returns   names and values in turn: now, state, due, lane, place (how many of the lane are before it),
            holder, holders and since when the lane is full, tried_at if the holder waits for its
            next attempt, lane_paused, lane_halted, limited_until, children and child, paused,
            concurrency, active, limited_ms, lock_ms until the lock ends, silent_s since it was written,
            before (how many wait in its list or set), stray if it is in the `paused` list of a queue
            that is not paused; target if it is on its way to another slot, and refused if that slot
            does not take it; nothing if there is no such job
  Flags     no-writes
  Cost      O(jobs running), O(log n), and O(jobs waiting) up to 100,000
]]
local LONG = 100000

local function tell(facts, name, value)
  if value then
    facts[#facts + 1] = name
    facts[#facts + 1] = tostring(value)
  end
end

--- Who holds the lane, if it is full.
local function tellHolder(facts, queue, lane)
  local _, ids = lanes.holders(queue, lane)
  if #ids < lanes.rules(queue, lane).capacity then return end
  local holder = hashes.read(queue.base .. ":" .. ids[1], "processedOn", "x.lane")
  local field = holder["x.lane"]
  tell(facts, "holder", ids[1])
  tell(facts, "holders", #ids)
  tell(facts, "since", holder.processedOn)
  tell(facts, "tried_at", field and redis.call("ZSCORE", queue["lanes:delayed"],
    laneNames.member(field, ids[1], laneNames.STARTED)))
end

local function tellLane(facts, queue, field, id)
  local lane = laneNames.laneOf(field)
  tellHolder(facts, queue, lane)
  local settings = lanes.settings(queue, lane) or {}
  tell(facts, "lane_paused", settings.paused and 1)
  tell(facts, "lane_halted", settings.halted)
  tell(facts, "limited_until", redis.call("ZSCORE", queue["lanes:later"], lane))
  for _, mark in ipairs({ laneNames.PLAIN, laneNames.STARTED }) do
    local member = laneNames.member(field, id, mark)
    if redis.call("ZSCORE", queue["lanes:waiting"], member) then
      tell(facts, "place", redis.call("ZLEXCOUNT", queue["lanes:waiting"], "[" .. lane .. " ",
        "(" .. member))
    end
    local due = redis.call("ZSCORE", queue["lanes:delayed"], member)
    if due then
      tell(facts, "state", "delayed")
      tell(facts, "due", due)
    end
  end
end

local function tellGate(facts, queue)
  local settings = hashes.read(queue.meta, "paused", "concurrency")
  tell(facts, "paused", settings.paused and 1)
  tell(facts, "concurrency", settings.concurrency)
  tell(facts, "active", redis.call("LLEN", queue.active))
  local ttl = redis.call("PTTL", queue.limiter)
  tell(facts, "limited_ms", ttl > 0 and tonumber(redis.call("GET", queue.limiter)) and ttl)
end

local function tellActive(facts, job, known)
  -- Nothing here may count as an access to the lock: the question is how long it has been untouched.
  local lock = job .. ":lock"
  local left_ms = redis.call("PTTL", lock)
  tell(facts, "state", left_ms ~= -2 and "active" or "stalled")
  tell(facts, "lock_ms", left_ms >= 0 and left_ms)
  local silent_s = redis.pcall("OBJECT", "IDLETIME", lock)
  tell(facts, "silent_s", type(silent_s) == "number" and silent_s)
  tell(facts, "worker", known.pb)
  tell(facts, "since", known.processedOn)
end

--- A job that is finished, runs or waits for children needs no further look; returns whether it does.
local function tellPlain(facts, queue, id, job, known)
  if redis.call("ZSCORE", queue.completed, id) then
    tell(facts, "state", "completed")
  elseif redis.call("ZSCORE", queue.failed, id) then
    tell(facts, "state", "failed")
    tell(facts, "reason", known.failedReason)
  elseif redis.call("LPOS", queue.active, id) then
    tellActive(facts, job, known)
  elseif redis.call("ZSCORE", queue.waiting_children, id) then
    tell(facts, "state", "waiting_children")
    tell(facts, "children", redis.call("SCARD", job .. ":dependencies"))
    tell(facts, "child", redis.call("SRANDMEMBER", job .. ":dependencies"))
  else
    return false
  end
  return true
end

--- Why a job has not started: its time, its lane, those before it, the queue.
local function tellWaiting(facts, queue, id, field)
  local due = redis.call("ZSCORE", queue.delayed, id)
  if due then
    tell(facts, "state", "delayed")
    tell(facts, "due", string.format("%.0f", math.floor(tonumber(due) / 4096)))
  end
  if field then tellLane(facts, queue, field, id) end
  local rank = redis.call("ZRANK", queue.prioritized, id)
  if not rank and not due and not field then
    if places.isListed(id, LONG, queue.wait, queue.paused) == false then
      tell(facts, "state", "unknown")
      return
    end
    tell(facts, "stray", redis.call("HEXISTS", queue.meta, "paused") == 0
      and places.isListed(id, LONG, queue.paused) and 1)
  end
  tell(facts, "before", rank or redis.call("LLEN", queue.wait))
  tell(facts, "state", "waiting")
  tellGate(facts, queue)
end

--- Is it on its way to another slot, or was it refused there?
local function tellTransit(facts, queue, parcel)
  if not parcel then return false end
  tell(facts, "state", "in_transit")
  tell(facts, "target", parcels.targetOf(queue.base, parcel))
  tell(facts, "refused", redis.call("HGET", queue.base .. ":toril:refused", parcel))
  return true
end

function calls.explain(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed, limiter, meta, job, lanes_waiting, lanes_delayed, lanes_held, lanes_later, lanes_settings, in_transit = unpack(KEYS)
  local known = hashes.read(job, "name", "x.lane", "pb", "processedOn", "failedReason")
  local queue = queues.at(base)
  local facts = { "now", clock.stamp(clock.now()) }
  if not known.name then
    return tellTransit(facts, queue, redis.call("HGET", in_transit, a.id)) and facts or {}
  end
  tell(facts, "lane", known["x.lane"] and 1)
  if not tellPlain(facts, queue, a.id, job, known) then
    tellWaiting(facts, queue, a.id, known["x.lane"])
  end
  return facts
end
