#!lua flags=no-writes
--[[
  explain: everything that decides why a job is not running.

  Keys      base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed,
            limiter, meta, job, lanes_waiting, lanes_delayed, lanes_held, lanes_later, lanes_settings
  Args      id str
  Returns   names and values in turn: now, state, due, lane, place (how many of the lane are before it),
            holder, holders and since when the lane takes no more, tried_at when the holder waits for its
            next attempt, lane_paused, lane_halted, limited_until, children and child, paused,
            concurrency, active, limited_ms, lock_ms until the lock ends, silent_s since it was written,
            before (how many wait in its list or set), stray when it is in the list of a paused queue
            that is not paused; nothing when there is no such job
  Cost      O(jobs running), O(log n), and O(jobs waiting) up to 100,000
]]
local base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed, limiter, meta, job, lanes_waiting, lanes_delayed, lanes_held, lanes_later, lanes_settings = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/lanes"
--- @include "includes/isListed"

local LONG = 100000

local known = redis.call("HMGET", job, "name", "x.lane", "pb", "processedOn", "failedReason")
if not known[1] then return {} end
local queue = queueAt(base)
local facts = { "now", stamp(clock()) }
local function tell(name, value)
  if value then
    facts[#facts + 1] = name
    facts[#facts + 1] = tostring(value)
  end
end

local function tellLane(field)
  local lane = laneOf(field)
  local _, ids = laneHolders(queue, lane)
  if #ids >= laneRules(queue, lane).capacity then
    local holder = redis.call("HMGET", base .. ":" .. ids[1], "processedOn", "x.lane")
    tell("holder", ids[1])
    tell("holders", #ids)
    tell("since", holder[1])
    tell("tried_at", holder[2]
      and redis.call("ZSCORE", lanes_delayed, laneMember(holder[2], ids[1], STARTED)))
  end
  local settings = laneSettings(queue, lane) or {}
  tell("lane_paused", settings.paused and 1)
  tell("lane_halted", settings.halted)
  tell("limited_until", redis.call("ZSCORE", lanes_later, lane))
  for _, mark in ipairs({ PLAIN, STARTED }) do
    local member = laneMember(field, a.id, mark)
    if redis.call("ZSCORE", lanes_waiting, member) then
      tell("place", redis.call("ZLEXCOUNT", lanes_waiting, "[" .. lane .. " ", "(" .. member))
    end
    local due = redis.call("ZSCORE", lanes_delayed, member)
    if due then
      tell("state", "delayed")
      tell("due", due)
    end
  end
end

local function tellGate()
  local settings = redis.call("HMGET", meta, "paused", "concurrency")
  tell("paused", settings[1] and 1)
  tell("concurrency", settings[2])
  tell("active", redis.call("LLEN", active))
  local ttl = redis.call("PTTL", limiter)
  tell("limited_ms", ttl > 0 and tonumber(redis.call("GET", limiter)) and ttl)
end

tell("lane", known[2] and 1)
if redis.call("ZSCORE", completed, a.id) then
  tell("state", "completed")
  return facts
end
if redis.call("ZSCORE", failed, a.id) then
  tell("state", "failed")
  tell("reason", known[5])
  return facts
end
if redis.call("LPOS", active, a.id) then
  -- Nothing here may count as an access to the lock: how long it was not touched is the question.
  local lock = job .. ":lock"
  local left_ms = redis.call("PTTL", lock)
  tell("state", left_ms ~= -2 and "active" or "stalled")
  tell("lock_ms", left_ms >= 0 and left_ms)
  local silent_s = redis.pcall("OBJECT", "IDLETIME", lock)
  tell("silent_s", type(silent_s) == "number" and silent_s)
  tell("worker", known[3])
  tell("since", known[4])
  return facts
end
if redis.call("ZSCORE", waiting_children, a.id) then
  tell("state", "waiting_children")
  tell("children", redis.call("SCARD", job .. ":dependencies"))
  tell("child", redis.call("SRANDMEMBER", job .. ":dependencies"))
  return facts
end
local due = redis.call("ZSCORE", delayed, a.id)
if due then
  tell("state", "delayed")
  tell("due", string.format("%.0f", math.floor(tonumber(due) / 4096)))
end
if known[2] then tellLane(known[2]) end
local rank = redis.call("ZRANK", prioritized, a.id)
if not rank and not due and not known[2] then
  if isListed(a.id, LONG, wait, paused) == false then
    tell("state", "unknown")
    return facts
  end
  tell("stray", redis.call("HEXISTS", meta, "paused") == 0 and isListed(a.id, LONG, paused) and 1)
end
tell("before", rank or redis.call("LLEN", wait))
tell("state", "waiting")
tellGate()
return facts
