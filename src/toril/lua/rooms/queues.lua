--- The keys of the queue named by `base`: queues.at(base).wait is its waiting list.
--- A script declares the keys of its own queue in its first line; those of a parent's queue are known
--- only from the job, and share its slot.
local ON_THE_WIRE = { waiting_children = "waiting-children" }

local key_names = {
  __index = function(queue, name)
    local key = queue.base .. ":" .. (ON_THE_WIRE[name] or name)
    queue[name] = key
    return key
  end
}

function queues.at(base)
  return setmetatable({ base = base }, key_names)
end

--- The same for a queue whose keys were passed: those need not be built.
function queues.given(keys)
  return setmetatable(keys, key_names)
end

--- The queue and the id in the full key of a job that belongs to a job of the queue at `near`.
--- Under the same prefix the first colon ends the queue's name, which contains none, and the id may
--- contain any number. Elsewhere the id begins after the last colon.
function queues.split(key, near)
  local prefix = string.match((string.gsub(near, ":compensation$", "")), "^(.*:)[^:]*$")
  if prefix and string.sub(key, 1, #prefix) == prefix then
    local rest = string.sub(key, #prefix + 1)
    local name, id = string.match(rest, "^([^:]+:compensation):(.+)$")
    if not name then name, id = string.match(rest, "^([^:]+):(.+)$") end
    if name then return prefix .. name, id end
  end
  return string.match(key, "^(.+):([^:]+)$")
end
