--- Delete everything of a job but its lock and its place.
local function deleteJob(job)
  redis.call("UNLINK", job, job .. ":logs", job .. ":dependencies", job .. ":processed",
    job .. ":failed", job .. ":unsuccessful")
end

--- The same for many jobs, in few calls.
local function deleteJobs(jobs)
  local keys = {}
  for i, job in ipairs(jobs) do
    local n = #keys
    keys[n + 1], keys[n + 2], keys[n + 3] = job, job .. ":logs", job .. ":dependencies"
    keys[n + 4], keys[n + 5], keys[n + 6] = job .. ":processed", job .. ":failed", job .. ":unsuccessful"
    if i % 500 == 0 or i == #jobs then
      redis.call("UNLINK", unpack(keys))
      keys = {}
    end
  end
end
