--[[
  glanceActive: a summary of each running job, the longest-running first.

  Keys      base, active
  Args      most int
  Returns   id, name, attempts started, since when, progress, worker, lane for each; "" for what is
            missing, and of what is very long the beginning
  Flags     no-writes
  Cost      O(most)
]]
local LONGEST = 2000

function calls.glanceActive(KEYS, a, ARGV)
  local base, active = unpack(KEYS)
  local found = {}
  local ids = redis.call("LRANGE", active, -a.most, -1) -- bounded: by a.most
  for i = #ids, 1, -1 do
    local job = redis.pcall("HMGET", base .. ":" .. ids[i], "name", "ats", "processedOn", "progress", "pb",
      "x.lane")
    local row = { ids[i] }
    for field = 1, 6 do
      row[field + 1] = string.sub(job[field] or "", 1, LONGEST)
    end
    found[#found + 1] = row
  end
  return found
end
