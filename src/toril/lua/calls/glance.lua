--[[
  glance: the state of a queue and its latest events, at one moment, for those who poll.

  Keys      base, lanes_index, groups, meta, events
  Args      after str (the last event that was seen), most int (events at most)
  Returns   what `count` returns, then how many lanes and how many groups there are, and how many jobs are on
            their way to another slot; whether the queue is paused (0 or 1); how many events there ever were; the newest events after `after`, the
            newest first: fewer if they are very large, and of a long value the beginning
  Flags     no-writes
  Cost      O(events)
]]
local function eventsAdded(events)
  if redis.call("EXISTS", events) == 0 then return 0 end
  local facts = redis.call("XINFO", "STREAM", events)
  for i = 1, #facts, 2 do
    if facts[i] == "entries-added" then return facts[i + 1] end
  end
  return 0
end

local LONGEST, MOST_BYTES = 2000, 1000000

--- Cut what is long in an event, as a result may be; returns how long it was.
local function shorten(fields)
  local size = 0
  for i, value in ipairs(fields) do
    size = size + #value
    fields[i] = string.sub(value, 1, LONGEST)
  end
  return size
end

--- The newest events, read in steps that double: how large they are is known only then.
local function newestEvents(events, after, most)
  local found, size, before, step = {}, 0, "+", 1
  while #found < most and size < MOST_BYTES do
    local page = redis.call("XREVRANGE", events, before, "(" .. after, "COUNT", math.min(step, most - #found))
    for _, event in ipairs(page) do
      size = size + shorten(event[2])
      found[#found + 1] = event
    end
    if #page < step then break end
    before, step = "(" .. page[#page][1], 2 * step
  end
  return found
end

function calls.glance(KEYS, a, ARGV)
  local base, lanes_index, groups_, meta, events = unpack(KEYS)
  local found = places.counts(queues.at(base))
  found[#found + 1] = redis.call("ZCARD", lanes_index)
  found[#found + 1] = redis.call("ZCARD", groups_)
  found[#found + 1] = redis.call("HLEN", base .. ":toril:in-transit")
  found[#found + 1] = redis.call("HEXISTS", meta, "paused")
  found[#found + 1] = eventsAdded(events)
  found[#found + 1] = newestEvents(events, a.after, a.most)
  return found
end
