#!lua flags=no-writes
--[[
  glance: how a queue is and what happened last, at one moment: for those who look again and again.

  Keys      wait, paused, active, prioritized, delayed, waiting_children, completed, failed,
            lanes_waiting, lanes_delayed, lanes_index, groups, meta, events
  Args      after str (the last event that was seen), most int (events at most)
  Returns   the lengths of the first twelve, in the same order; whether the queue is paused (0 or 1);
            how many events there ever were; the newest events after that one, the newest first
  Cost      O(events)
]]
local wait, paused, active, prioritized, delayed, waiting_children, completed, failed, lanes_waiting, lanes_delayed, lanes_index, groups, meta, events = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])

local added = 0
if redis.call("EXISTS", events) == 1 then
  local facts = redis.call("XINFO", "STREAM", events)
  for i = 1, #facts, 2 do
    if facts[i] == "entries-added" then added = facts[i + 1] end
  end
end
return {
  redis.call("LLEN", wait),
  redis.call("LLEN", paused),
  redis.call("LLEN", active),
  redis.call("ZCARD", prioritized),
  redis.call("ZCARD", delayed),
  redis.call("ZCARD", waiting_children),
  redis.call("ZCARD", completed),
  redis.call("ZCARD", failed),
  redis.call("ZCARD", lanes_waiting),
  redis.call("ZCARD", lanes_delayed),
  redis.call("ZCARD", lanes_index),
  redis.call("ZCARD", groups),
  redis.call("HEXISTS", meta, "paused"),
  added,
  redis.call("XREVRANGE", events, "+", "(" .. a.after, "COUNT", a.most)
}
