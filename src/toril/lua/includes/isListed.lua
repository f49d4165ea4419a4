--- Is the job in one of these lists? Searching takes time in proportion to their length, so nothing
--- is said (nil) of lists with more than `most` jobs.
local function isListed(id, most, ...)
  local lists, length = { ... }, 0
  for _, list in ipairs(lists) do
    length = length + redis.call("LLEN", list)
  end
  if length > most then return nil end
  for _, list in ipairs(lists) do
    if redis.call("LPOS", list, id) then return true end
  end
  return false
end
