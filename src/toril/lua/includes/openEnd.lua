--- @lazily
--- Groups need to know of a member whether its last run has an end that nobody told: its process died,
--- or it was stopped in the middle. `x.lost` is the number of that start, as `ats` counts them.

local function noteOpenEnd(job)
  redis.call("HSET", job, "x.lost", redis.call("HGET", job, "ats") or "1")
end

--- `started` and `lost` are the fields of those names. A job that is doomed has been taken once more,
--- without being run.
local function isOpenEnd(started, lost, is_doomed)
  if not lost then return false end
  return tonumber(lost) >= (tonumber(started) or 0) - (is_doomed and 1 or 0)
end
