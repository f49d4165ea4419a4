--- The queue and the id in the full key of a job that belongs to a job of the queue at `near`.
--- Under the same prefix the first colon ends the queue's name, which has none, and the id may have any
--- number. Elsewhere the last colon begins the id.
local function splitKey(key, near)
  local prefix = string.match((string.gsub(near, ":compensation$", "")), "^(.*:)[^:]*$")
  if prefix and string.sub(key, 1, #prefix) == prefix then
    local rest = string.sub(key, #prefix + 1)
    local name, id = string.match(rest, "^([^:]+:compensation):(.+)$")
    if not name then name, id = string.match(rest, "^([^:]+):(.+)$") end
    if name then return prefix .. name, id end
  end
  return string.match(key, "^(.+):([^:]+)$")
end
