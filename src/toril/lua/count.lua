#!lua flags=no-writes
--[[
  count: how many jobs are in each state, at one moment.

  Keys      wait, paused, active, prioritized, delayed, waiting_children, completed, failed,
            lanes_waiting, lanes_delayed
  Args      none
  Returns   the lengths of those, in the same order
  Cost      O(1)
]]
local wait, paused, active, prioritized, delayed, waiting_children, completed, failed, lanes_waiting, lanes_delayed = unpack(KEYS)

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
}
