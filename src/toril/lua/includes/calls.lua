--- Calls that were made, remembered for longer than a client sends one again: a copy of it, sent
--- because the reply was lost or arriving late, does nothing.
local REMEMBER_CALL_MS = 60000

local function wasMade(queue, call)
  return redis.call("EXISTS", queue.base .. ":toril:call:" .. call) == 1
end

local function rememberCall(queue, call)
  redis.call("SET", queue.base .. ":toril:call:" .. call, "1", "PX", REMEMBER_CALL_MS)
end
