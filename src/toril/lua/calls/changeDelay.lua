--[[
  changeDelay: give a delayed job a new delay, counted from now.

  Keys      base, delayed, marker, meta, paused, events, job
  Args      id str, call str, delay_ms int
  Returns   0
  Refuses   MISSING             the job does not exist   JobNotFoundError
            NOT_IN_STATE        it is not delayed   JobNotInStateError
  Emits     delayed
  Keeps     I1
  Flags     allow-oom
  Cost      O(log delayed jobs)
]]
function calls.changeDelay(KEYS, a, ARGV)
  local base, delayed, marker, meta, paused, events, job = unpack(KEYS)
  local queue = queues.at(base)
  if requests.wasMade(queue, a.call) then return 0 end
  if redis.call("EXISTS", job) == 0 then return refusals.MISSING end
  local due = clock.now() + a.delay_ms
  if redis.call("ZREM", delayed, a.id) == 1 then
    places.delay(queue, a.id, due)
    places.wakeWhenDue(queue)
  else
    local lane, mark = lanes.takeDelayed(queue, a.id)
    if not lane then return refusals.NOT_IN_STATE end
    lanes.putAside(queue, laneNames.laneOf(lane), laneNames.member(lane, a.id, mark), due)
    lanes.wakeWhenDue(queue)
  end
  requests.remember(queue, a.call)
  redis.call("HSET", job, "delay", a.delay_ms, "x.due", due)
  journal.emitTrimmed(queue, gates.read(queue), "delayed", "jobId", a.id, "delay", due)
  return 0
end
