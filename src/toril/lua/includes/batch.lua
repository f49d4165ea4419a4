--- What the outcomes of one call have in common is asked and written once for all of them.

--- Who holds the locks, and whether any of these jobs has children.
local function readBatch(base, outcomes)
  local batch = { holders = {}, has_children = false, locks = {}, ids = {}, completed = {} }
  if #outcomes == 0 then return batch end
  local locks, children = {}, {}
  for i, outcome in ipairs(outcomes) do
    local job = base .. ":" .. outcome.id
    locks[i] = job .. ":lock"
    children[2 * i - 1], children[2 * i] = job .. ":dependencies", job .. ":unsuccessful"
  end
  batch.holders = redis.call("MGET", unpack(locks))
  batch.has_children = redis.call("EXISTS", unpack(children)) > 0
  return batch
end

--- Does the worker still hold the job? Returns nothing, or why not.
local function refuseInBatch(batch, i, outcome)
  local holder = batch.holders[i]
  if holder ~= outcome.token then return holder and -6 or -2 end
  return nil
end

--- Take a job out of `active` if its worker still holds it; nothing is written unless it does.
local function leaveInBatch(queue, batch, i, outcome)
  local refusal = refuseInBatch(batch, i, outcome)
  if refusal then return refusal end
  if redis.call("LREM", queue.active, -1, outcome.id) == 0 then return -3 end
  batch.locks[#batch.locks + 1] = queue.base .. ":" .. outcome.id .. ":lock"
  batch.ids[#batch.ids + 1] = outcome.id
  return nil
end

--- Give the locks back of the jobs that left, and write the plainly completed ones into their set.
local function releaseBatch(queue, batch)
  if #batch.ids == 0 then return end
  if #batch.completed > 0 then
    redis.call("ZADD", queue.completed, unpack(batch.completed))
  end
  redis.call("DEL", unpack(batch.locks))
  redis.call("SREM", queue.stalled, unpack(batch.ids))
end
