--- Take the members of a group that are not running out of their queues.

local SHORT_LIST = 2000

--- The reason with which a job in a list too long to search is doomed. It does not become a dead
--- letter, even if its group has been forgotten when its turn comes.
members.CANCELLED = "its group was cancelled"

--- Take ids out of a list; returns those that were in it. A few are searched for one by one, from the
--- old end; for many, the list is rewritten without them.
local function removeFromList(list, ids)
  local found = {}
  if #ids <= 3 then
    for _, id in ipairs(ids) do
      if redis.call("LREM", list, -1, id) == 1 then found[id] = true end
    end
    return found
  end
  local wanted, others = {}, {}
  for _, id in ipairs(ids) do
    wanted[id] = true
  end
  for _, id in ipairs(redis.call("LRANGE", list, 0, SHORT_LIST)) do
    if wanted[id] then
      found[id] = true
    else
      others[#others + 1] = id
    end
  end
  redis.call("DEL", list)
  if #others > 0 then redis.call("RPUSH", list, unpack(others)) end
  return found
end

--- Take ids out of a sorted set and note the place; returns the others.
local function removeFromSet(queue, name, ids, place_of)
  if #ids == 0 or redis.call("EXISTS", queue[name]) == 0 then return ids end
  -- A key of the wrong type must not keep a group from turning; the worker that takes its job finds out.
  local scores = redis.pcall("ZMSCORE", queue[name], unpack(ids))
  if scores.err then return ids end
  local found, others = {}, {}
  for i, id in ipairs(ids) do
    local to = scores[i] and found or others
    to[#to + 1] = id
    if scores[i] then place_of[id] = name end
  end
  if #found > 0 then redis.call("ZREM", queue[name], unpack(found)) end
  return others
end

local MOST_CHILDREN = 1000

--- Remove the children that a job waits for, and theirs, unless somebody runs them. Those in other slots are
--- removed there. Whatever exceeds what one call may do stays, and runs although nobody needs it.
local function removeChildren(queue, job, budget)
  local cursor = "0"
  repeat
    local page = redis.call("SSCAN", job .. ":dependencies", cursor, "COUNT", 100)
    cursor = page[1]
    for _, child in ipairs(page[2]) do
      local base, id = queues.split(child, queue.base)
      if base and budget.left > 0 and parcels.isAway(base) then
        budget.left = budget.left - 1
        removals.removeElsewhere(base, id, queue.base, job, MOST_CHILDREN)
      elseif base and budget.left > 0 and redis.call("EXISTS", child .. ":lock") == 0 then
        local of = queues.at(base)
        budget.left = budget.left - 1 - math.floor(redis.call("LLEN", of.wait) / 1000)
        local place = places.takeOut(of, id)
        removeChildren(of, child, budget)
        deduplication.forget(of, id, redis.call("HGET", child, "deid"))
        jobs.delete(child)
        journal.emit(of, "removed", "jobId", id, "prev", place)
      end
    end
  until cursor == "0"
end

--- Where each of these jobs that nobody runs was: in a sorted set or in a short list. In a long list a
--- job stays, marked so that the worker that takes it fails it without running it.
local function pullOut(queue, ids, started, known, released)
  local place_of, plain, listed = {}, {}, {}
  for _, id in ipairs(ids) do
    local lane = known[id]["x.lane"]
    if lane then
      place_of[id] = lanes.pull(queue, lane, id)
      if not place_of[id] and redis.call("ZREM", queue.waiting_children, id) == 1 then
        lanes.leave(queue, lane, id)
        place_of[id] = "waiting-children"
      end
    else
      plain[#plain + 1] = id
    end
  end
  plain = removeFromSet(queue, "delayed", plain, place_of)
  plain = removeFromSet(queue, "prioritized", plain, place_of)
  plain = removeFromSet(queue, "waiting-children", plain, place_of)
  for _, id in ipairs(plain) do
    -- A job whose lock this call releases may still be in `active`, and leaves it at the end.
    local is_leaving = released[queue.base .. ":" .. id .. ":lock"]
    if is_leaving or not (started[id] and redis.pcall("LPOS", queue.active, id)) then
      listed[#listed + 1] = id
    end
  end
  for _, name in ipairs({ "wait", "paused" }) do
    local length = tonumber(redis.pcall("LLEN", queue[name])) or 0
    if #listed > 0 and length > 0 and length <= SHORT_LIST then
      local found, rest = removeFromList(queue[name], listed), {}
      for _, id in ipairs(listed) do
        if found[id] then
          place_of[id] = name
        else
          rest[#rest + 1] = id
        end
      end
      listed = rest
    elseif #listed > 0 and length > SHORT_LIST then
      for _, id in ipairs(listed) do
        -- One that a worker ended that knows of no groups is in no list, and perhaps gone: its end counts.
        if known[id].name and not known[id].finishedOn then
          redis.call("HSET", queue.base .. ":" .. id, "defa", members.CANCELLED)
          place_of[id] = "marked"
        end
      end
      listed = {}
    end
  end
  return place_of
end

--- Cancel the jobs with these keys, all in the queue named by `base`, unless somebody runs them.
--- `released` names the locks that this call is about to release. Returns the keys of those
--- cancelled, the numbers of those that are undone anyway (those that had started and ask for it, and
--- those that may have done their work before their process died), and for each of those cancelled what
--- its group needs to know about its end.
function members.cancel(base, job_keys, released)
  local queue = queues.at(base)
  local lock_keys, ids, started, known = {}, {}, {}, {}
  for i, job in ipairs(job_keys) do
    lock_keys[i] = job .. ":lock"
  end
  local holders = redis.call("MGET", unpack(lock_keys))
  for i, job in ipairs(job_keys) do
    if not holders[i] or released[lock_keys[i]] then
      local id = string.sub(job, #base + 2)
      local fields = hashes.read(job, "name", "finishedOn", "ats", "x.group", "x.lane", "x.lost", "defa",
        "parentKey", "parent", "x.told")
      ids[#ids + 1] = id
      started[id] = tonumber(fields.ats) ~= nil
      known[id] = fields
    end
  end

  local cancelled, undone, ends, removed, budget = {}, {}, {}, {}, { left = MOST_CHILDREN }
  local place_of = pullOut(queue, ids, started, known, released)
  for _, id in ipairs(ids) do
    local place = place_of[id]
    if place then
      local job = base .. ":" .. id
      cancelled[#cancelled + 1] = job
      local kind, number = string.match(known[id]["x.group"] or "", ":(%a)(%d+)$")
      local is_open = jobs.isOpenEnd(known[id].ats, known[id]["x.lost"], known[id].defa)
      ends[#ends + 1] = { id = id, membership = known[id]["x.group"], started = started[id], is_open = is_open }
      if started[id] and (kind == "f" or kind == "m" and is_open) then
        undone[#undone + 1] = number
      end
      if place == "waiting-children" then removeChildren(queue, job, budget) end
      if place ~= "marked" then
        removed[#removed + 1] = job
        pcall(journal.emit, queue, "removed", "jobId", id, "prev", place)
        -- A flow may have made it a child since its group was created.
        local parent_key = known[id].parentKey
        if parent_key then pcall(parents.unlink, job, parent_key, known[id].parent, nil, known[id]["x.told"]) end
      end
    end
  end
  jobs.deleteAll(removed)
  return cancelled, undone, ends
end
