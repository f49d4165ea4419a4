#!lua flags=allow-oom
--[[
  clean: remove jobs of one place that are older than a time, a slice at a time.

  The first call fixes that time, and the caller passes it on. Jobs that a worker holds and the
  pending iterations of schedulers stay; the caller skips them, from the oldest on.

  Keys      base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed,
            stalled, meta, events, repeat, lanes_waiting, lanes_delayed
  Args      place str (a key of the queue), grace_ms int, cutoff_ms int?, slice int, skip int,
            removed int (by the calls before), limit int (0 for none), is_last bool (place)
  Returns   the time in ms, how many were looked at, how many of them stay, the removed ids
  Emits     cleaned
  Keeps     I1, I2
  Cost      O(slice); in a list O(skip) more when something is removed
]]
local base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed, stalled, meta, events, repeat_, lanes_waiting, lanes_delayed = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/deleteJob"
--- @include "includes/parents"
--- @include "includes/deduplication"
--- @include "includes/removeJob"
--- @include "includes/scheduled"

local queue = queueAt(base)
local place = queue[a.place]
local cutoff = a.cutoff_ms or clock() - a.grace_ms
local REMOVED = "toril:removed"

--- Since when the job counts as old: what BullMQ goes by in each place. An id without a job is as
--- old as time.
local function ageOf(id)
  local known = redis.pcall("HMGET", base .. ":" .. id, "finishedOn", "processedOn", "timestamp")
  if place == prioritized then return tonumber(known[3]) or 0 end
  if place == delayed then return tonumber(known[2]) or tonumber(known[3]) or 0 end
  return tonumber(known[1]) or tonumber(known[2]) or tonumber(known[3]) or 0
end

local function mayGo(id)
  if isNextIteration(queue, id) then return false end
  if place == active and redis.call("EXISTS", base .. ":" .. id .. ":lock") == 1 then return false end
  return ageOf(id) <= cutoff
end

local gone, looked = {}, 0
if place == completed or place == failed then
  gone = redis.call("ZRANGEBYSCORE", place, "-inf", cutoff, "LIMIT", 0, a.slice)
  looked = #gone
  if #gone > 0 then redis.call("ZREM", place, unpack(gone)) end
elseif place == lanes_waiting or place == lanes_delayed then
  local members = redis.call("ZRANGE", place, a.skip, a.skip + a.slice - 1)
  looked = #members
  for _, member in ipairs(members) do
    local id = idInLane(member)
    if mayGo(id) then gone[#gone + 1] = id end
  end
elseif place == prioritized or place == delayed then
  local ids = redis.call("ZRANGE", place, a.skip, a.skip + a.slice - 1)
  looked = #ids
  for _, id in ipairs(ids) do
    if mayGo(id) then gone[#gone + 1] = id end
  end
  if #gone > 0 then redis.call("ZREM", place, unpack(gone)) end
else
  -- The oldest are at the right end. What goes is marked where it stands and removed in one scan.
  local ids = redis.call("LRANGE", place, -(a.skip + a.slice), -(a.skip + 1)) -- bounded: slice
  looked = #ids
  for back = 0, #ids - 1 do
    local id = ids[#ids - back]
    if mayGo(id) then
      gone[#gone + 1] = id
      redis.call("LSET", place, -(a.skip + 1 + back), REMOVED)
    end
  end
  if #gone > 0 then
    redis.call("LREM", place, -#gone, REMOVED)
    if place == active then
      redis.call("SREM", stalled, unpack(gone))
    end
  end
end
for _, id in ipairs(gone) do
  removeAnyJob(queue, id, { is_hard = true, was_active = place == active })
end

if rawget(queue, "lanes") then wakeForLanes(queue, readGate(queue)) end

local removed = a.removed + #gone
if looked < a.slice and a.is_last or a.limit > 0 and removed >= a.limit then
  emit(queue, "cleaned", "count", removed)
end
return { cutoff, looked, looked - #gone, gone }
