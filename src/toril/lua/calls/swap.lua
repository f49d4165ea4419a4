--[[
  swap: replace a text with another, or delete it, if it is the expected one.

  Keys      record
  Args      expected str, wanted str? (without it the text is deleted)
  Returns   the text there is now, or nil
  Cost      O(1)
]]
function calls.swap(KEYS, a, ARGV)
  local record = unpack(KEYS)
  local known = redis.call("GET", record)
  if known ~= a.expected then return known end
  if a.wanted then
    redis.call("SET", record, a.wanted)
  else
    redis.call("DEL", record)
  end
  return a.wanted
end
