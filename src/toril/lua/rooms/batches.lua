--- What the outcomes of one call have in common is read and written once for all of them.

--- Are these jobs exactly the oldest ones in `active`? Under load they are, and leave it together.
local function areOldest(queue, outcomes)
  local oldest = redis.call("LRANGE", queue.active, -#outcomes, -1) -- bounded: one call's outcomes
  if #oldest ~= #outcomes then return false end
  local is_settled = {}
  for _, outcome in ipairs(outcomes) do is_settled[outcome.id] = true end
  for _, id in ipairs(oldest) do
    if not is_settled[id] then return false end
  end
  return true
end

--- The keys of the jobs and of their locks, who holds the locks, whether any of the jobs has children,
--- and how they leave `active`.
function batches.read(queue, gate, outcomes)
  local job_keys, lock_keys, size = {}, {}, #outcomes
  local batch = { size = size, jobs = job_keys, lock_of = lock_keys, has_children = false,
    leaves_together = false, locks = {}, ids = {}, completed = {}, lanes = {} }
  if size == 0 then return batch end
  -- Few jobs have children, and none is marked as stalled for long: one question for all.
  local rare = { queue.stalled, nil, nil } -- with room for one job
  for i, outcome in ipairs(outcomes) do
    local job = queue.base .. ":" .. outcome.id
    job_keys[i], lock_keys[i] = job, job .. ":lock"
    rare[2 * i], rare[2 * i + 1] = job .. ":dependencies", job .. ":unsuccessful"
  end
  batch.holders = redis.call("MGET", unpack(lock_keys))
  local found = redis.call("EXISTS", unpack(rare))
  batch.are_marked = found > 0 and redis.call("EXISTS", queue.stalled) == 1
  batch.has_children = found > (batch.are_marked and 1 or 0)
  -- A limit on active jobs is checked as each one leaves, so then they leave one by one.
  batch.leaves_together = size >= 4 and not gate.concurrency and areOldest(queue, outcomes)
  return batch
end

--- Does the worker still hold the job? Returns nothing, or why not.
function batches.refuse(batch, i, outcome)
  local holder = batch.holders[i]
  if holder ~= outcome.token then return holder and refusals.LOCK_TAKEN or refusals.LOCK_EXPIRED end
  return nil
end

--- Take a job out of `active` if its worker still holds it; nothing is written unless it does.
function batches.leave(queue, batch, i, outcome)
  local refusal = batches.refuse(batch, i, outcome)
  if refusal then return refusal end
  if not batch.leaves_together and redis.call("LREM", queue.active, "-1", outcome.id) == 0 then
    return refusals.NOT_IN_STATE
  end
  local n = #batch.ids + 1
  batch.locks[n], batch.ids[n] = batch.lock_of[i], outcome.id
  return nil
end

--- Release the locks of the jobs that left, and write the plainly completed ones into their set.
function batches.release(queue, batch)
  if #batch.ids == 0 then return end
  if batch.leaves_together and #batch.ids == batch.size then
    redis.call("LTRIM", queue.active, 0, -batch.size - 1)
  elseif batch.leaves_together then
    for _, id in ipairs(batch.ids) do
      redis.call("LREM", queue.active, "-1", id)
    end
  end
  if #batch.completed > 0 then
    redis.call("ZADD", queue.completed, unpack(batch.completed))
  end
  redis.call("DEL", unpack(batch.locks))
  if batch.are_marked then redis.call("SREM", queue.stalled, unpack(batch.ids)) end
  if #batch.lanes > 0 then lanes.releaseAll(queue, batch.lanes) end
end
