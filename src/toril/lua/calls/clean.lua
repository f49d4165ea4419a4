--[[
  clean: remove the jobs in one place that are older than a given time, a slice at a time.

  The first call fixes that time, and the caller passes it on. Jobs that a worker holds and the
  pending iterations of schedulers stay; the caller skips them, starting with the oldest.

  Keys      base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed,
            stalled, meta, events, repeat, lanes_waiting, lanes_delayed
  Args      place str (a key of the queue), grace_ms int, cutoff_ms int?, slice int, skip int,
            removed int (by earlier calls), limit int (0 for none), is_last bool (place),
            flight str?, request str?, is_late bool? (rooms/requests.lua)
  Returns   the time in ms, how many were examined, how many of them stay, the removed ids
  Emits     cleaned
  Keeps     I1, I2, I4
  Flags     allow-oom
  Cost      O(slice); in a list O(skip) more when something is removed
]]
local REMOVED = "toril:removed"

--- The time from which a job's age counts: the one that BullMQ uses for each place. An id without a
--- job counts as infinitely old.
local function ageOf(queue, place, id)
  local known = hashes.tryRead(queue.base .. ":" .. id, "finishedOn", "processedOn", "timestamp")
  if place == "prioritized" then return tonumber(known.timestamp) or 0 end
  if place == "delayed" then return tonumber(known.processedOn) or tonumber(known.timestamp) or 0 end
  return tonumber(known.finishedOn) or tonumber(known.processedOn) or tonumber(known.timestamp) or 0
end

local function mayGo(queue, place, id, cutoff)
  if schedules.isNextIteration(queue, id) then return false end
  if place == "active" and redis.call("EXISTS", queue.base .. ":" .. id .. ":lock") == 1 then
    return false
  end
  return ageOf(queue, place, id) <= cutoff
end

--- Take out what is old enough; each function returns those ids, and how many were examined.
local function takeFinished(queue, a, cutoff)
  local gone = redis.call("ZRANGEBYSCORE", queue[a.place], "-inf", cutoff, "LIMIT", 0, a.slice)
  if #gone > 0 then redis.call("ZREM", queue[a.place], unpack(gone)) end
  return gone, #gone
end

--- They leave their lanes here, because a job without a hash does not say what its lane is.
local function takeFromLanes(queue, a, cutoff)
  local gone = {}
  local found = redis.call("ZRANGE", queue[a.place], a.skip, a.skip + a.slice - 1)
  for _, member in ipairs(found) do
    local id = laneNames.idIn(member)
    if mayGo(queue, a.place, id, cutoff) then
      lanes.discard(queue, member)
      gone[#gone + 1] = id
    end
  end
  return gone, #found
end

local function takeSorted(queue, a, cutoff)
  local gone = {}
  local ids = redis.call("ZRANGE", queue[a.place], a.skip, a.skip + a.slice - 1)
  for _, id in ipairs(ids) do
    if mayGo(queue, a.place, id, cutoff) then gone[#gone + 1] = id end
  end
  if #gone > 0 then redis.call("ZREM", queue[a.place], unpack(gone)) end
  return gone, #ids
end

--- The oldest are at the right end. Jobs to remove are marked in place and removed in one scan.
local function takeListed(queue, a, cutoff)
  local list, gone = queue[a.place], {}
  local ids = redis.call("LRANGE", list, -(a.skip + a.slice), -(a.skip + 1)) -- bounded: slice
  for back = 0, #ids - 1 do
    local id = ids[#ids - back]
    if mayGo(queue, a.place, id, cutoff) then
      gone[#gone + 1] = id
      redis.call("LSET", list, -(a.skip + 1 + back), REMOVED)
    end
  end
  if #gone > 0 then
    redis.call("LREM", list, -#gone, REMOVED)
    if a.place == "active" then redis.call("SREM", queue.stalled, unpack(gone)) end
  end
  return gone, #ids
end

local TAKE = { completed = takeFinished, failed = takeFinished, prioritized = takeSorted,
  delayed = takeSorted, ["lanes:waiting"] = takeFromLanes,
  ["lanes:delayed"] = takeFromLanes }

local function cleanSlice(queue, a)
  local cutoff = a.cutoff_ms or clock.now() - a.grace_ms
  local gone, looked = (TAKE[a.place] or takeListed)(queue, a, cutoff)
  for _, id in ipairs(gone) do
    jobs.removeAny(queue, id, { is_hard = true, was_active = a.place == "active" })
  end
  local removed = a.removed + #gone
  if looked < a.slice and a.is_last or a.limit > 0 and removed >= a.limit then
    journal.emit(queue, "cleaned", "count", removed)
  end
  return { cutoff, looked, looked - #gone, gone }
end

function calls.clean(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, delayed, waiting_children, completed, failed, stalled, meta, events, repeat_, lanes_waiting, lanes_delayed = unpack(KEYS)
  local queue = queues.at(base)
  return requests.makeOnce(queue, a, clock.now(), function() return cleanSlice(queue, a) end)
end
