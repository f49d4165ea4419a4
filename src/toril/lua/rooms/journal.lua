--- Append an event to the queue's stream.
function journal.emit(queue, event, ...)
  redis.call("XADD", queue.events, "*", "event", event, ...)
end

--- The same, and let the stream forget what is beyond its length.
function journal.emitTrimmed(queue, gate, event, ...)
  redis.call("XADD", queue.events, "MAXLEN", "~", gate.max_events, "*", "event", event, ...)
end

function journal.trim(queue, gate)
  redis.call("XTRIM", queue.events, "MAXLEN", "~", gate.max_events)
end
