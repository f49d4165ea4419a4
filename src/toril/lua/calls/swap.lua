--[[
  swap: replace a text with another, if it is the expected one.

  Keys      record
  Args      expected str, wanted str
  Returns   the text there is now, or nil
  Cost      O(1)
]]
function calls.swap(KEYS, a, ARGV)
  local record = unpack(KEYS)
  local known = redis.call("GET", record)
  if known ~= a.expected then return known end
  redis.call("SET", record, a.wanted)
  return a.wanted
end
