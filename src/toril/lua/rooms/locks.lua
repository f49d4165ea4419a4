--- Does `token` hold the lock of the job? Returns nothing, or why not.
function locks.refuse(job, token)
  local holder = redis.call("GET", job .. ":lock")
  if holder == token then return nil end
  return holder and refusals.LOCK_TAKEN or refusals.LOCK_EXPIRED
end
