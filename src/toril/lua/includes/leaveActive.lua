--- @include "includes/refuseStranger"
--- Take a job out of `active` and give its lock back. Nothing is written unless all is as it should be.
local function leaveActive(queue, job, id, token)
  local refusal = refuseStranger(job, token)
  if refusal then return refusal end
  if redis.call("LREM", queue.active, -1, id) == 0 then return -3 end
  redis.call("DEL", job .. ":lock")
  redis.call("SREM", queue.stalled, id)
  return nil
end
