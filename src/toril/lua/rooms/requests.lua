--- A call that adds or removes, or changes many jobs, takes effect once, however often it arrives: sent
--- again because its reply was lost, or a late copy. Every call belongs to a flight, a series of calls
--- by one client with one call under way at a time, and has a number of sixteen digits, larger than the
--- one before it. The last call of each flight is remembered, for longer than a client keeps resending
--- it.
---
--- What is remembered is the number, the time, and the reply unless it is the usual one. It is written
--- before the work, by the command that reads the previous one, so this costs only one command.
local KEEP_NUMBER_MS = "300000"

local function rememberReply(key, request, now, reply)
  redis.call("SET", key, request .. clock.stamp(now) .. cmsgpack.pack(reply), "PX", KEEP_NUMBER_MS)
end

--- The answer to a call that came again or too late, from what the call before it left.
local function answerAgain(key, last, a, usual)
  parcels.recall()
  redis.call("SET", key, last, "PX", KEEP_NUMBER_MS)
  if string.sub(last, 1, 16) ~= a.request then
    return redis.error_reply("GHOST a newer call of this flight was made already")
  end
  if #last == 29 then return usual(tonumber(string.sub(last, 17))) end
  return cmsgpack.unpack(string.sub(last, 30))
end

--- The reply to this call: what `work` returns (with a second value: is that the usual reply?), or what
--- it returned when the call was first made. `usual(now)` builds the usual reply.
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

--- Calls that were made, remembered for longer than a client keeps resending them: a copy, sent because
--- the reply was lost or arriving late, does nothing.
local REMEMBER_CALL_MS = 60000

function requests.wasMade(queue, call)
  return redis.call("EXISTS", queue.base .. ":toril:call:" .. call) == 1
end

function requests.remember(queue, call, answer)
  redis.call("SET", queue.base .. ":toril:call:" .. call, answer or "1", "PX", REMEMBER_CALL_MS)
end

--- What was answered to a call that was made; false if it was not. What it left for other slots is
--- handed over once more.
function requests.answerTo(queue, call)
  local answer = redis.call("GET", queue.base .. ":toril:call:" .. call)
  if answer then parcels.recall() end
  return answer
end

--- The usual reply to a call that adds: the time, and that each job was added.
function requests.allAdded(at, count)
  local results = { at }
  for i = 1, count do results[i + 1] = 0 end
  return results
end
