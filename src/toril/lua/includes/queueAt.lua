--- The keys of the queue named by `base`: queueAt(base).wait is its waiting list.
--- A script declares the keys of its own queue in its first line; those of a parent's queue can only
--- be known from the job, and share its slot.
local key_names = {
  __index = function(queue, name)
    local key = queue.base .. ":" .. string.gsub(name, "_", "-")
    queue[name] = key
    return key
  end
}

local function queueAt(base)
  return setmetatable({ base = base }, key_names)
end
