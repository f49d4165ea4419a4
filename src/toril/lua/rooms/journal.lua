--- Append an event, and trim the stream to its maximum length: once per call, which adds only so many.
function journal.emitTrimmed(queue, gate, event, ...)
  if gate.has_trimmed then
    redis.call("XADD", queue.events, "*", "event", event, ...)
    return
  end
  gate.has_trimmed = true
  redis.call("XADD", queue.events, "MAXLEN", "~", gate.max_events, "*", "event", event, ...)
end

--- Append an event to the queue's stream.
function journal.emit(queue, event, ...)
  local gate = rawget(queue, "trims_with")
  if gate then return journal.emitTrimmed(queue, gate, event, ...) end
  redis.call("XADD", queue.events, "*", "event", event, ...)
end

--- Trim the stream with the next event of this call, which saves a command.
function journal.trimWithNext(queue, gate)
  queue.trims_with = gate
end

function journal.trim(queue, gate)
  redis.call("XTRIM", queue.events, "MAXLEN", "~", gate.max_events)
end
