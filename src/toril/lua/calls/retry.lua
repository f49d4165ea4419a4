--[[
  retry: let one finished job run again, with other data if they are given.

  Keys      base, wait, paused, active, prioritized, pc, waiting_children, completed, failed, marker, meta, events
  Args      id str, call str, resets_attempts bool, force bool?
            After the map, raw: the new data as JSON, or nothing, which leaves them as they are.
  Returns   0
  Refuses   MISSING             the job does not exist   JobNotFoundError
            NOT_IN_STATE        it is not finished   JobNotInStateError
            WRONG_GROUP_STATE   its group is over, being undone, or counts it as done   InvalidGroupStateError
  Emits     waiting, waiting-children
  Keeps     I1
  Flags     allow-oom
  Cost      O(1)
]]
function calls.retry(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, pc, waiting_children, completed, failed, marker, meta, events = unpack(KEYS)
  local queue = queues.at(base)
  local data = ARGV[2]
  if requests.wasMade(queue, a.call) then return 0 end
  if redis.call("EXISTS", base .. ":" .. a.id) == 0 then return refusals.MISSING end
  local job = base .. ":" .. a.id
  local membership = not a.force and redis.call("HGET", job, "x.group")
  -- One that failed may count as completed all the same: a person has said so.
  if membership and (redis.call("ZSCORE", completed, a.id) or groups.stateOf(membership, job, true) ~= "ACTIVE") then
    return refusals.WRONG_GROUP_STATE
  end
  local state = "failed"
  if redis.call("ZREM", failed, a.id) == 0 then
    state = "completed"
    if redis.call("ZREM", completed, a.id) == 0 then return refusals.NOT_IN_STATE end
  end
  requests.remember(queue, a.call)
  if data then redis.call("HSET", job, "data", data) end
  local gate = gates.read(queue)
  jobs.retry(queue, gate, a.id, state, a.resets_attempts)
  places.wake(queue, gate)
  return 0
end
