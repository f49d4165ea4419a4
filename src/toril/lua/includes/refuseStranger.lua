--- Does `token` hold the lock of the job? Returns nothing, or why not.
local function refuseStranger(job, token)
  local holder = redis.call("GET", job .. ":lock")
  if holder == token then return nil end
  return holder and -6 or -2
end
