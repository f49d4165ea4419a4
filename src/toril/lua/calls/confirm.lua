--[[
  confirm: what became of jobs that were added with `once`.

  A job that is gone but remembered has run and been removed; one that is gone and not remembered was
  lost with the server's memory. The memory of a job that has yet to run is kept alive.

  Keys      base, completed, failed
  Args      jobs list of {id, key}, ms int (how long to remember)
  Returns   for each job: 0 lost, 1 yet to run, 2 finished, 3 finished and removed
  Cost      O(jobs)
]]
function calls.confirm(KEYS, a, ARGV)
  local base, completed, failed = unpack(KEYS)
  local queue = queues.at(base)
  local results = {}
  for i, job in ipairs(a.jobs) do
    if redis.call("ZSCORE", completed, job.id) or redis.call("ZSCORE", failed, job.id) then
      results[i] = 2
    elseif redis.call("EXISTS", base .. ":" .. job.id) == 1 then
      once.remember(queue, job.id, job.key, a.ms)
      results[i] = 1
    else
      results[i] = once.isRemembered(queue, job.id, job.key) and 3 or 0
    end
  end
  return results
end
