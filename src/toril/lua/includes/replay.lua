--- @lazily
--- Give a dead letter another life in the queue it came from: a new job with the first data and
--- options and no attempts made. The letter's place in its list is the caller's to clear.
---
--- `how` = { prefix, source, keep_delay, by, data, opts, priority, delay, is_repaired }; the data and
--- options are given when the client has taken the letter apart itself. Returns nothing, and changes
--- nothing, when somebody changed the data so that the metadata cannot be cut out.
--- @include "includes/deleteJob"
--- @include "includes/deduplicate"
--- @include "includes/insertJob"
--- @include "includes/jsonText"
--- @include "includes/spliceMeta"

local LONGEST_HISTORY = 8192

--- The returns so far, as the inside of a JSON array.
local function historyWith(known, id, how, now)
  local entry = '{"deadLetteredAt":' .. string.format("%.0f", tonumber(known[9]) or 0)
    .. ',"replayedAt":' .. string.format("%.0f", now)
    .. ',"deadLetterJobId":' .. jsonText(id)
    .. ',"originalJobId":' .. jsonText(known[11] or "")
    .. ',"fingerprint":' .. jsonText(known[10] or "")
    .. (how.by and ',"by":' .. jsonText(how.by) or "")
    .. (how.is_repaired and ',"repaired":true' or "") .. "}"
  local history = known[7]
  if not history or #history > LONGEST_HISTORY then return entry end
  return history .. "," .. entry
end

--- The queue that a letter goes back to, read once per call; `sources` collects them.
local function sourceAt(sources, base)
  local source = sources[base]
  if not source then
    local queue = queueAt(base)
    source = { queue = queue, gate = readGate(queue), added = 0, places = {} }
    sources[base] = source
  end
  return source
end

--- Tell the workers of all sources, once, what has come back.
local function wakeSources(sources)
  for _, source in pairs(sources) do
    redis.call("INCRBY", source.queue.id, source.added)
    if source.places.ready or source.places.lane then wake(source.queue, source.gate) end
    if source.places.delayed then wakeWhenDue(source.queue) end
  end
end

--- The caller ends with wakeSources(sources).
local function replayLetter(dead_letters, id, new_id, how, sources, now)
  local letter = dead_letters.base .. ":" .. id
  local known = redis.call("HMGET", letter, "name", "data", "x.cut", "x.data", "x.opts", "x.replays",
    "x.history", "x.original", "timestamp", "x.fp", "x.job", "x.priority", "x.delay", "x.inLane",
    "x.order")
  local first = known[4] or unsplice(known[2] or "", known[3])
  local data = how.data or first
  if not data then return nil end

  local base = how.prefix .. ":" .. how.source
  local source = sourceAt(sources, base)
  local job = { id = new_id, name = known[1],
    priority = how.priority or tonumber(known[12]) or 0,
    delay = how.keep_delay and (how.delay or tonumber(known[13])) or 0,
    lane = known[14] or nil, order_ms = tonumber(known[15] or nil) }
  local opts = how.opts or known[5] or '{"attempts":0}'
  local place = insertJob(source.queue, source.gate, job, data, opts, now)
  source.places[place] = true
  source.added = source.added + 1
  local more = { "x.replays", (tonumber(known[6]) or 0) + 1,
    "x.history", historyWith(known, id, how, now) }
  local original = known[8] or (how.is_repaired and not known[4] and first)
  if original then
    more[5], more[6] = "x.original", original
  end
  redis.call("HSET", base .. ":" .. new_id, unpack(more))
  deleteJob(letter)
  return new_id
end
