--- Delete everything of a job but its lock and its place.
local function deleteJob(job)
  redis.call("UNLINK", job, job .. ":logs", job .. ":dependencies", job .. ":processed",
    job .. ":failed", job .. ":unsuccessful")
end
