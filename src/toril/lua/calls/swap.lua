--[[
  swap: write a text in place of another one, if that is what is written.

  Keys      record
  Args      expected str, wanted str
  Returns   what is written now, or nil
  Cost      O(1)
]]
function calls.swap(KEYS, a, ARGV)
  local record = unpack(KEYS)
  local known = redis.call("GET", record)
  if known ~= a.expected then return known end
  redis.call("SET", record, a.wanted)
  return a.wanted
end
