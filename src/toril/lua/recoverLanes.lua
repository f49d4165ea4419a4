#!lua flags=allow-oom
--[[
  recoverLanes: look at the holders of lanes and at the lanes themselves, a slice at a time, and put
  right what does not fit.

  A holder that is gone without letting go (a worker of BullMQ finished it, somebody removed it) no
  longer holds its lane. One that BullMQ's stall check put into the plain list goes back to its lane.
  The part "kept" writes `de` anew where it does not name what waits in lanes: workers of an older
  version neither write nor clear it.

  Keys      base, wait, active, delayed, prioritized, waiting_children, marker, meta, paused,
            lanes_held, lanes_index, lanes_waiting, lanes_delayed, de
  Args      part str ("held", "index" or "kept"), cursor str ("0" to begin), slice int
  Returns   the next cursor ("0" when done), how many lanes were let go
  Keeps     I1
  Cost      O(slice), and O(jobs running) for each holder without a lock
]]
local base, wait, active, delayed, prioritized, waiting_children, marker, meta, paused, lanes_held, lanes_index, lanes_waiting, lanes_delayed, de = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/lanes"

local queue = queueAt(base)
local gate = readGate(queue)

--- Does this job still hold its lane? One that stands in the plain list is put back into it.
local function isHolder(id)
  local job = base .. ":" .. id
  if redis.call("EXISTS", job .. ":lock") == 1 then return true end
  local field = redis.pcall("HGET", job, "x.lane")
  if type(field) ~= "string" then return false end
  if redis.call("ZSCORE", lanes_delayed, laneMember(field, id, STARTED)) then return true end
  for _, place in ipairs({ waiting_children, delayed, prioritized }) do
    if redis.call("ZSCORE", place, id) then return true end
  end
  if redis.call("LPOS", active, id) then return true end
  -- BullMQ puts what stalled to the end from which workers take.
  if redis.call("LPOS", wait, id, "RANK", -1, "MAXLEN", 1000) then
    redis.call("LREM", wait, -1, id)
    keepJob(queue, id)
    addToWaiting(queue, laneOf(field), laneMember(field, id, STARTED))
  end
  return false
end

local function recover(lane)
  local turn, ids = laneHolders(queue, lane)
  local staying = {}
  for _, id in ipairs(ids) do
    if isHolder(id) then staying[#staying + 1] = id end
  end
  if #staying < #ids then saveLaneHolders(queue, lane, turn, staying) end
  return placeLane(queue, lane, #staying, turn) or #staying < #ids
end

--- The key that a cursor of the part "kept" stands in, and the one that comes after it.
local KEPT = { w = lanes_waiting, d = lanes_delayed, k = de }
local AFTER = { w = "d0", d = "k0", k = "0" }

--- Name all that waits in lanes, then forget what does not.
local function keepSlice(cursor)
  if cursor == "0" then
    if isAllKept(queue) then return "0" end
    cursor = "w0"
  end
  local where = string.sub(cursor, 1, 1)
  local verb = where == "k" and "SSCAN" or "ZSCAN"
  local found = redis.call(verb, KEPT[where], string.sub(cursor, 2), "COUNT", a.slice)
  for i = 1, #found[2], where == "k" and 1 or 2 do
    local word = found[2][i]
    if where ~= "k" then
      keepJob(queue, idInLane(word))
    elseif word ~= "groups" and word ~= "compensation" then
      local field = redis.pcall("HGET", base .. ":" .. word, "x.lane")
      if type(field) ~= "string" or not waitsInLane(queue, field, word) then dropKept(queue, word) end
    end
  end
  if found[1] == "0" then return AFTER[where] end
  return where .. found[1]
end

if a.part == "kept" then return { keepSlice(a.cursor), 0 } end

local page
if a.part == "held" then
  page = redis.call("HSCAN", lanes_held, a.cursor, "COUNT", a.slice)
else
  page = redis.call("ZSCAN", lanes_index, a.cursor, "COUNT", a.slice)
end
local recovered = 0
for i = 1, #page[2], 2 do
  if recover(page[2][i]) then recovered = recovered + 1 end
end
wakeForLanes(queue, gate)
wakeLanesWhenDue(queue)
return { page[1], recovered }
