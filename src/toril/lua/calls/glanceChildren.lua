--[[
  glanceChildren: the names of some children of a job, without what became of them.

  Keys      dependencies, processed, failed, unsuccessful
  Args      most int (of each kind)
  Returns   the full keys of those it waits for, of those that completed, of those whose failure it
            ignores, and of those that failed it
  Flags     no-writes
  Cost      O(most)
]]
local function everySecond(words)
  local names = {}
  for i = 1, #words, 2 do
    names[#names + 1] = words[i]
  end
  return names
end

--- The names in a hash, a few of them; a server that cannot leave out the values gives them too.
local function someNames(key, most)
  local reply = redis.pcall("HSCAN", key, "0", "COUNT", most, "NOVALUES")
  if not reply.err then return reply[2] end
  return everySecond(redis.call("HSCAN", key, "0", "COUNT", most)[2])
end

function calls.glanceChildren(KEYS, a, ARGV)
  local dependencies, processed, failed, unsuccessful = unpack(KEYS)
  return { redis.call("SSCAN", dependencies, "0", "COUNT", a.most)[2], someNames(processed, a.most),
    someNames(failed, a.most), everySecond(redis.call("ZSCAN", unsuccessful, "0", "COUNT", a.most)[2]) }
end
