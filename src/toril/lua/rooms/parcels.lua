--- What crosses the slots of a cluster. A call writes only in the slot of its first key, so it leaves
--- its messages for queues elsewhere there as parcels, in the same step: `toril:parcels` holds them by
--- id, and `toril:parcels-due` says when a courier may carry each of them. `toril:in-transit` names the
--- parcel that a job has become; meanwhile the job is in no other place.
---
--- A parcel is a head ({ target, at, transit }) and a body ({ verb, … }), packed one after the other.
--- Couriers take bodies as they are; rooms/deliveries.lua opens them.

local PUT_OFF_MS, LONGEST_PUT_OFF_MS = 1000, 60000
local MOST_IN_REPLY = 100
local MOST_BYTES_IN_REPLY = 500000
local OLDEST_MS = 82800000 -- an hour less than a target remembers its deliveries

local function tagOf(base)
  return string.match(base, "{([^}]+)}") or base
end

--- Is the queue at `base` in a different slot from the queue of this call? Two hash tags may share a
--- slot; a parcel between them does no harm.
function parcels.isAway(base)
  return memory.outbox and tagOf(base) ~= tagOf(memory.outbox)
end

--- Can anything be sent to the queue at `base`? On a cluster its keys need a hash tag.
function parcels.canReach(base)
  return not memory.outbox or string.find(base, "{[^}]+}") ~= nil
end

local function outboxOf(base)
  return base .. ":toril:parcels", base .. ":toril:parcels-due", base .. ":toril:in-transit"
end

--- May this parcel go with the reply of the call that leaves it? Then its caller carries it, as one who
--- has fetched it. What is too much for one reply has to be fetched, and so has all that comes after it.
local function handOver(id, target, body, transit)
  if not memory.carries or memory.has_more then return false end
  local handed = memory.handed or {}
  local bytes = (memory.handed_bytes or 0) + #body
  if #handed == MOST_IN_REPLY or bytes > MOST_BYTES_IN_REPLY then
    memory.has_more = true
    return false
  end
  handed[#handed + 1] = { id, target, body, transit and 1 or 0 }
  memory.handed, memory.handed_bytes = handed, bytes
  return true
end

--- Leave a parcel for the queue at `target`. Its id, which is returned, is derived from what happened:
--- `what` in this queue, at this time, in order within a call. Ids sort in the order in which parcels
--- were left, also those of calls in the same millisecond. `transit` is the id of the job that is in no
--- other place now.
function parcels.send(target, what, body, transit)
  local all, due, in_transit = outboxOf(memory.outbox)
  local at = clock.stamp(clock.now())
  memory.has_parcels = (memory.has_parcels or 0) + 1
  local hash = redis.sha1hex(table.concat({ memory.outbox, target, body.verb, what }, "\n"))
  local id = string.format("p%s-%s%04d-%s", at, clock.micros(), memory.has_parcels,
    string.sub(hash, 1, 16))
  local head = cmsgpack.pack({ target = target, at = clock.now(), transit = transit })
  local text = cmsgpack.pack(body)
  redis.call("HSET", all, id, #head .. ":" .. head .. text)
  if handOver(id, target, text, transit) then
    memory.later = memory.later or string.format("%.0f", clock.now() + PUT_OFF_MS)
    at = memory.later
  end
  redis.call("ZADD", due, at, id)
  if transit then redis.call("HSET", in_transit, transit, id) end
  return id
end

--- The parcel that a job has become at the queue at `base`; nothing if there is none, or if its target
--- refused it, because nothing may wait for that.
function parcels.carrying(base, job)
  local _, _, in_transit = outboxOf(base)
  local id = redis.call("HGET", in_transit, job)
  if id and redis.call("HEXISTS", base .. ":toril:refused", id) == 0 then return id end
end

--- Is this parcel still where it was left? That is this queue, unless another one of the slot is named.
function parcels.isHere(id, base)
  return redis.call("HEXISTS", (outboxOf(base or memory.outbox)), id) == 1
end

local MOST_SEARCHED = 100

--- Do parcels for the queue at `target` wait at this one? If there are very many or some were refused,
--- perhaps.
function parcels.hasFor(base, target)
  if redis.call("EXISTS", base .. ":toril:refused") == 1 then return true end
  local _, due = outboxOf(base)
  local ids = redis.call("ZRANGE", due, 0, MOST_SEARCHED)
  if #ids > MOST_SEARCHED then return true end
  for _, id in ipairs(ids) do
    if parcels.targetOf(base, id) == target then return true end
  end
  return false
end

--- This call was already made and its reply was lost: parcels that it left may still be here. They are
--- handed over again, with those that others have just been given: two couriers do no harm.
function parcels.recall()
  if not memory.outbox then return end
  local _, due = outboxOf(memory.outbox)
  if redis.call("EXISTS", due) == 0 then return end
  memory.has_parcels = memory.has_parcels or 0
  if not memory.carries then return end
  local now = clock.now()
  memory.handed, memory.has_more = parcels.fetch(memory.outbox, MOST_IN_REPLY, MOST_BYTES_IN_REPLY, now,
    now + PUT_OFF_MS)
end

--- The reply of a call that left parcels: it says so, and has those that its caller carries. An error is
--- told alone; what was left is due to others.
function parcels.tellWith(reply)
  if type(reply) == "table" and reply.err then return reply end
  if reply == nil then reply = false end
  if not memory.carries then return { "toril:parcels", reply } end
  return { "toril:parcels", reply, memory.handed or {}, memory.has_more and 1 or 0 }
end

--- A parcel's head and body; nothing if it is not a parcel.
local function open(text)
  local size, rest = string.match(text or "", "^(%d+):()")
  if not size then return nil end
  local is_read, head = pcall(cmsgpack.unpack, string.sub(text, rest, rest + size - 1))
  if not is_read or type(head) ~= "table" or not head.target then return nil end
  return head, string.sub(text, rest + size)
end

--- The queue that a parcel goes to.
function parcels.targetOf(base, id)
  local head = open(redis.call("HGET", (outboxOf(base)), id))
  return head and head.target
end

--- Do not hand over a parcel that this call has left and takes back.
local function keepBack(ids)
  for i = #(memory.handed or {}), 1, -1 do
    for _, id in ipairs(ids) do
      if memory.handed[i][1] == id then table.remove(memory.handed, i) break end
    end
  end
end

--- The jobs that are in no other place than these parcels.
local function inTransit(base, ids)
  local all, _, in_transit = outboxOf(base)
  local parcel_of, jobs_of, found = {}, {}, {}
  for i, text in ipairs(redis.call("HMGET", all, unpack(ids))) do
    local head = open(text)
    if head and head.transit then
      jobs_of[#jobs_of + 1], parcel_of[#parcel_of + 1] = head.transit, ids[i]
    end
  end
  if #jobs_of == 0 then return found end
  for i, id in ipairs(redis.call("HMGET", in_transit, unpack(jobs_of))) do
    if id == parcel_of[i] then found[#found + 1] = jobs_of[i] end
  end
  return found
end

--- Forget parcels: they were delivered, or must not be.
function parcels.forget(base, ids)
  if #ids == 0 then return end
  local all, due, in_transit = outboxOf(base)
  local arrived = inTransit(base, ids)
  if #arrived > 0 then redis.call("HDEL", in_transit, unpack(arrived)) end
  redis.call("HDEL", all, unpack(ids))
  -- Those that are refused are not due.
  if redis.call("ZREM", due, unpack(ids)) < #ids then
    redis.call("HDEL", base .. ":toril:refused", unpack(ids))
  end
  keepBack(ids)
end

--- A target refuses a parcel and always will: it stays where it is, but no courier carries it.
function parcels.refuse(base, id, words)
  local all, due = outboxOf(base)
  if redis.call("HEXISTS", all, id) == 0 then return end
  redis.call("ZREM", due, id)
  redis.call("HSET", base .. ":toril:refused", id, words)
end

--- Let couriers carry refused parcels once more, at most `count`; returns how many.
function parcels.offerAgain(base, count, now)
  local all, due = outboxOf(base)
  local refused, offered = base .. ":toril:refused", 0
  for _, id in ipairs(redis.call("HRANDFIELD", refused, count)) do
    local head, body = open(redis.call("HGET", all, id))
    if head then
      head.at = now
      head = cmsgpack.pack(head)
      redis.call("HSET", all, id, #head .. ":" .. head .. body)
      redis.call("ZADD", due, clock.stamp(now), id)
      offered = offered + 1
    end
    redis.call("HDEL", refused, id)
  end
  return offered
end

--- Parcels that are due, as { id, target, body, whether a job is in transit }, and whether there are
--- more. Fetching a parcel postpones it, by a second at first and then by as long as it has waited: if
--- that courier dies, another one carries it. Whoever knows better may take those due until `until_ms`.
function parcels.fetch(base, count, most_bytes, now, until_ms)
  local all, due = outboxOf(base)
  local ids = redis.call("ZRANGEBYSCORE", due, "-inf", clock.stamp(until_ms or now), "LIMIT", 0, count)
  local found, bytes = {}, 0
  for i, id in ipairs(ids) do
    local text = redis.call("HGET", all, id)
    local head, body = open(text)
    if not head then
      redis.call("ZREM", due, id)
      if text then parcels.refuse(base, id, "it cannot be read") end
    elseif now - head.at > OLDEST_MS then
      parcels.refuse(base, id, "it waited for more than 23 hours, and may have been delivered")
    else
      bytes = bytes + #body
      if #found > 0 and bytes > most_bytes then return found, true end
      local put_off_ms = math.min(math.max(now - head.at, PUT_OFF_MS), LONGEST_PUT_OFF_MS)
      redis.call("ZADD", due, clock.stamp(now + put_off_ms), id)
      found[#found + 1] = { id, head.target, body, head.transit and 1 or 0 }
    end
  end
  return found, #ids == count
end
