--[[
  promote: let one delayed job run now.

  Keys      base, wait, paused, active, prioritized, pc, delayed, marker, meta, events
  Args      id str, call str
  Returns   0
  Refuses   MISSING             the job does not exist   JobNotFoundError
            NOT_IN_STATE        it is not delayed   JobNotInStateError
  Emits     waiting
  Keeps     I1
  Flags     allow-oom
  Cost      O(1)
]]
function calls.promote(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, pc, delayed, marker, meta, events = unpack(KEYS)
  local queue = queues.at(base)
  if requests.wasMade(queue, a.call) then return 0 end
  if redis.call("EXISTS", base .. ":" .. a.id) == 0 then return refusals.MISSING end
  local gate = gates.read(queue)
  if redis.call("ZREM", delayed, a.id) == 1 then
    places.promote(queue, gate, a.id)
  else
    local lane, mark = lanes.takeDelayed(queue, a.id)
    if not lane then return refusals.NOT_IN_STATE end
    lanes.promote(queue, gate, lane, a.id, mark)
    places.noteDue(base .. ":" .. a.id)
  end
  requests.remember(queue, a.call)
  places.wake(queue, gate)
  return 0
end
