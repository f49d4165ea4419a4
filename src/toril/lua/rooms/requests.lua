--- A call that adds is made once, however often it arrives: sent again because its reply was lost, or
--- a copy that comes late. Every call belongs to a flight, a line of calls of one client of which one
--- is away at a time, and has a number of sixteen digits, larger than the one before it. The last call
--- of each flight is remembered, for longer than a client sends one again.
---
--- What is remembered is the number, the time, and the reply unless it is the usual one. It is written
--- before the work, by the command that reads the last one: one command is all that this costs.
local KEEP_NUMBER_MS = "300000"

local function rememberReply(key, request, now, reply)
  redis.call("SET", key, request .. clock.stamp(now) .. cmsgpack.pack(reply), "PX", KEEP_NUMBER_MS)
end

--- What the call that came before says to this one, which came again or too late.
local function answerAgain(key, last, a, usual)
  parcels.recall()
  redis.call("SET", key, last, "PX", KEEP_NUMBER_MS)
  if string.sub(last, 1, 16) ~= a.request then
    return redis.error_reply("GHOST a newer call of this flight was made already")
  end
  if #last == 29 then return usual(tonumber(string.sub(last, 17))) end
  return cmsgpack.unpack(string.sub(last, 30))
end

--- The reply of this call: what `work` returns (and beside it, is that the usual reply?), or what it
--- returned when the call was made before. `usual(now)` makes the usual reply.
function requests.makeOnce(queue, a, now, work, usual)
  if not a.flight then return (work()) end
  local key = queue.base .. ":toril:adds:" .. a.flight
  local last = redis.call("SET", key, a.request .. clock.stamp(now), "PX", KEEP_NUMBER_MS, "GET")
  if last and last >= a.request then return answerAgain(key, last, a, usual) end
  if a.is_late then
    redis.call("DEL", key)
    return redis.error_reply("FORGOTTEN whether this call was made")
  end
  local is_done, reply, is_usual = pcall(work)
  if not is_done then
    redis.call("DEL", key)
    error(reply, 0)
  end
  if type(reply) == "table" and reply.err then
    redis.call("DEL", key)
  elseif not is_usual then
    rememberReply(key, a.request, now, reply)
  end
  return reply
end

--- Calls that were made, remembered for longer than a client sends one again: a copy of it, sent
--- because the reply was lost or arriving late, does nothing.
local REMEMBER_CALL_MS = 60000

function requests.wasMade(queue, call)
  return redis.call("EXISTS", queue.base .. ":toril:call:" .. call) == 1
end

function requests.remember(queue, call)
  redis.call("SET", queue.base .. ":toril:call:" .. call, "1", "PX", REMEMBER_CALL_MS)
end

--- The usual reply of a call that adds: the time, and that each of them was added.
function requests.allAdded(at, count)
  local results = { at }
  for i = 1, count do results[i + 1] = 0 end
  return results
end
