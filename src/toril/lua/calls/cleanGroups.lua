--[[
  cleanGroups: forget groups that ended before a given time, a slice at a time, the oldest first.

  Groups that could not be undone are kept until somebody has resolved them. The jobs are not touched.

  Keys      base (of the queue that owns the groups), ended
  Args      grace_ms int, cutoff_ms int? (that time, from the second slice on), slice int,
            flight str?, request str?, is_late bool? (rooms/requests.lua)
  Returns   that time in ms, the ids of the groups
  Keeps     I4
  Flags     allow-oom
  Cost      O(slice)
]]
local function cleanSlice(base, ended, a)
  local cutoff = a.cutoff_ms or clock.now() - a.grace_ms
  local ids = redis.call("ZRANGEBYSCORE", ended, "-inf", cutoff, "LIMIT", 0, a.slice)
  for _, id in ipairs(ids) do
    groups.forget(base, id)
  end
  return { cutoff, ids }
end

function calls.cleanGroups(KEYS, a, ARGV)
  local base, ended = unpack(KEYS)
  return requests.makeOnce(queues.at(base), a, clock.now(), function() return cleanSlice(base, ended, a) end)
end
