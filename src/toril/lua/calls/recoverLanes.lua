--[[
  recoverLanes: check the holders of lanes and the lanes themselves, a slice at a time, and repair
  what does not fit.

  A holder that is gone without having let go (a BullMQ worker finished it, somebody removed it) no
  longer holds its lane. One that BullMQ's stall check put into the plain list goes back to its lane.
  The part "kept" repairs `de` where it does not name what waits in lanes: workers of an older
  version neither write nor clear it.

  Keys      base, wait, active, delayed, prioritized, waiting_children, marker, meta, paused,
            lanes_held, lanes_index, lanes_waiting, lanes_delayed, de
  Args      part str ("held", "index" or "kept"), cursor str ("0" to begin), slice int
  Returns   the next cursor ("0" when done), how many lanes were released
  Keeps     I1
  Flags     allow-oom
  Cost      O(slice), and O(jobs running) for each holder without a lock
]]
--- The key that a cursor of the part "kept" walks through, and the cursor that comes after it.
local KEPT = { w = "lanes:waiting", d = "lanes:delayed", k = "de" }
local AFTER = { w = "d0", d = "k0", k = "0" }

--- Does this job still hold its lane? If it is in the plain list, it is put back into its lane.
local function isHolder(queue, id)
  local job = queue.base .. ":" .. id
  if redis.call("EXISTS", job .. ":lock") == 1 then return true end
  local field = redis.pcall("HGET", job, "x.lane")
  if type(field) ~= "string" then return false end
  local member = laneNames.member(field, id, laneNames.STARTED)
  if redis.call("ZSCORE", queue["lanes:delayed"], member) then return true end
  for _, place in ipairs({ "waiting_children", "delayed", "prioritized" }) do
    if redis.call("ZSCORE", queue[place], id) then return true end
  end
  if redis.call("LPOS", queue.active, id) then return true end
  -- BullMQ puts stalled jobs at the end that workers take from.
  if redis.call("LPOS", queue.wait, id, "RANK", -1, "MAXLEN", 1000) then
    redis.call("LREM", queue.wait, -1, id)
    lanes.keepJob(queue, id)
    lanes.addToWaiting(queue, laneNames.laneOf(field), member)
  end
  return false
end

local function recover(queue, lane)
  local turn, ids = lanes.holders(queue, lane)
  local staying = {}
  for _, id in ipairs(ids) do
    if isHolder(queue, id) then staying[#staying + 1] = id end
  end
  if #staying < #ids then lanes.saveHolders(queue, lane, turn, staying) end
  return lanes.place(queue, lane, #staying, turn) or #staying < #ids
end

--- Forget a word of `de` that does not name a job waiting in a lane.
local function dropUnlessWaiting(queue, word)
  if word == "groups" or word == "compensation" then return end
  local field = redis.pcall("HGET", queue.base .. ":" .. word, "x.lane")
  if type(field) ~= "string" or not lanes.hasWaiting(queue, field, word) then
    lanes.dropKept(queue, word)
  end
end

--- Name everything that waits in lanes, then forget what does not wait.
local function keepSlice(queue, cursor, slice)
  if cursor == "0" then
    if lanes.isAllKept(queue) then return "0" end
    cursor = "w0"
  end
  local where = string.sub(cursor, 1, 1)
  local verb = where == "k" and "SSCAN" or "ZSCAN"
  local found = redis.call(verb, queue[KEPT[where]], string.sub(cursor, 2), "COUNT", slice)
  for i = 1, #found[2], where == "k" and 1 or 2 do
    if where == "k" then
      dropUnlessWaiting(queue, found[2][i])
    else
      lanes.keepJob(queue, laneNames.idIn(found[2][i]))
    end
  end
  if found[1] == "0" then return AFTER[where] end
  return where .. found[1]
end

function calls.recoverLanes(KEYS, a, ARGV)
  local base, wait, active, delayed, prioritized, waiting_children, marker, meta, paused, lanes_held, lanes_index, lanes_waiting, lanes_delayed, de = unpack(KEYS)
  local queue = queues.at(base)
  if a.part == "kept" then return { keepSlice(queue, a.cursor, a.slice), 0 } end
  local page
  if a.part == "held" then
    page = redis.call("HSCAN", lanes_held, a.cursor, "COUNT", a.slice)
  else
    page = redis.call("ZSCAN", lanes_index, a.cursor, "COUNT", a.slice)
  end
  local recovered = 0
  for i = 1, #page[2], 2 do
    if recover(queue, page[2][i]) then recovered = recovered + 1 end
  end
  lanes.wakeWhenDue(queue)
  return { page[1], recovered }
end
