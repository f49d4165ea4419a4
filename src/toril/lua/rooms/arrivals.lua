--- The new jobs that one call adds to a queue: they are counted, and workers are told, once for all.

--- `gate` may be read later.
function arrivals.at(queue, gate)
  return { queue = queue, gate = gate, count = 0, places = {} }
end

--- Let a new job in; returns as `jobs.insert` does.
function arrivals.insert(to, job, data, opts, now)
  to.gate = to.gate or gates.read(to.queue)
  local place, owner = jobs.insert(to.queue, to.gate, job, data, opts, now)
  if place then to.places[place] = true end
  return place, owner
end

--- Tell an idle worker what has come.
function arrivals.wake(queue, gate, used)
  if used.ready then places.wake(queue, gate) end
  if used.delayed then places.wakeWhenDue(queue) end
end

--- All are in: the queue's counter advances by the number counted.
function arrivals.close(to)
  local queue = to.queue
  places.pushCollected(queue, to.gate)
  if to.count > 0 then redis.call("INCRBY", queue.id, clock.digits(to.count)) end
  local keeping = rawget(queue, "keeping")
  if keeping and #keeping > 0 then lanes.keepCollected(queue) end
  arrivals.wake(queue, to.gate, to.places)
end
