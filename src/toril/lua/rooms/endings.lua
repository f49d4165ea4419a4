--- How a job of a group ended whose end nobody reported. Other workers (BullMQ's) end jobs without
--- knowing about groups, and other tools remove jobs. What the finished sets say is what counts; if a job
--- is gone, only the events of its queue can tell.

local SLICE, MOST_SLICES = 1000, 3
local STALLED = "job stalled more than allowable limit"

--- Note what an event says about the job that it names. That a job was removed after it had ended does
--- not say how: an older event does.
local function hear(ends, fields)
  local event = {}
  for i = 1, #fields, 2 do
    event[fields[i]] = fields[i + 1]
  end
  if not event.jobId then return end
  local known = ends[event.jobId] or {}
  ends[event.jobId] = known
  if event.event == "active" then
    known.is_started = true
  elseif event.event == "added" then
    known.is_added = true
  elseif known.state then
    return
  elseif event.event == "completed" then
    known.state, known.value = "completed", event.returnvalue
  elseif event.event == "failed" then
    known.state, known.value = "failed", event.failedReason
  elseif event.event == "removed" and event.prev ~= "completed" and event.prev ~= "failed" then
    known.state, known.value = "cancelled", "removed"
  end
end

--- Does the log still hold every event ever written?
local function isWhole(queue_base)
  local info = redis.pcall("XINFO", "STREAM", queue_base .. ":events")
  local told = {}
  for i = 1, #info, 2 do
    told[info[i]] = info[i + 1]
  end
  return told.length ~= nil and told.length == told["entries-added"]
end

--- A slice of a queue's events, the newest first, starting at `last`; nothing if this call has read
--- enough.
local function eventsUpTo(work, queue_base, last)
  local name = queue_base .. " " .. last
  if work.pages[name] then return work.pages[name] end
  if work.slices == MOST_SLICES then return nil end
  work.slices = work.slices + 1
  local entries = redis.call("XREVRANGE", queue_base .. ":events", last, "-", "COUNT", SLICE)
  local page = { ends = {}, first = entries[#entries] and entries[#entries][1],
    is_end = #entries < SLICE }
  for _, entry in ipairs(entries) do
    hear(page.ends, entry[2])
  end
  work.pages[name] = page
  return page
end

--- What one call has read of the events.
function endings.begin()
  return { slices = 0, pages = {} }
end

--- How a job with this hash ended in this state.
local function endedAs(state, id, hash)
  local at = tonumber(hash.finishedOn)
  if state == "completed" then
    return { id = id, state = state, value = hash.returnvalue or "null", at = at }
  end
  return { id = id, state = state, value = hash.failedReason or "", at = at, started = true,
    is_open = hash.failedReason == STALLED or jobs.isOpenEnd(hash.ats, hash["x.lost"], hash.defa) }
end

--- How a job ended, if it did: { id, state, value, at, started, is_open }; or nothing, and whether it is
--- gone.
function endings.read(job)
  local queue_base, id = string.match(job, "^(.+):([^:]+)$")
  local hash = hashes.read(job, "name", "finishedOn", "returnvalue", "failedReason", "ats", "x.lost",
    "defa")
  if not hash.name then return nil, true end
  if not hash.finishedOn then return nil, false end
  if redis.call("ZSCORE", queue_base .. ":completed", id) then
    return endedAs("completed", id, hash)
  end
  if redis.call("ZSCORE", queue_base .. ":failed", id) then
    return endedAs("failed", id, hash)
  end
  return nil, false
end

--- The same for a job that is being removed and is in no set any more: only its hash, which the caller
--- has read, can tell. Nothing if it has not ended.
function endings.ofRemoved(id, hash)
  if not hash.finishedOn then return nil end
  if hash.returnvalue then return endedAs("completed", id, hash) end
  return hash.failedReason and endedAs("failed", id, hash) or nil
end

--- Where the search for a job that is gone continues, in the record of its group; "" if a person is
--- asked.
function endings.placeField(job)
  return "x.seek." .. job
end

--- Search the events for a job that is gone, from `last` back to the time `since`, over several calls
--- if need be. Returns { known (what they say), is_told, last, is_reading (there is more to read) }.
function endings.search(work, job, last, since)
  local queue_base, id = string.match(job, "^(.+):([^:]+)$")
  local is_told, known = false, {}
  while last ~= "" and not is_told do
    local page = eventsUpTo(work, queue_base, last)
    if not page then return { known = {}, is_told = false, last = last, is_reading = true } end
    known = page.ends[id] or {}
    local began = page.first and tonumber(string.match(page.first, "^%d+")) or math.huge
    is_told = known.state ~= nil or known.is_added or began < since
      or page.is_end and isWhole(queue_base)
    last = page.is_end and "" or "(" .. (page.first or "")
  end
  return { known = known, is_told = is_told or false, last = last, is_reading = false }
end

--- Mark a group that only a person can end.
local function ask(key, field, id, now)
  local owner, group_id = string.match(key, "^(.*):groups:([^:]+)$")
  redis.call("HSET", key, field, "", "x.asks",
    "job " .. id .. " is gone, and the log of events does not tell how it ended")
  redis.call("ZADD", groups.asking(owner), clock.stamp(now), group_id)
end

--- What a group in this state concludes about a job that is gone, from what was found: how it ended.
--- Nothing while it is not known. If the log does not reach back far enough, the job may be done, so an
--- active group waits for a person.
function endings.judge(key, job, state, found, now)
  local field, id = endings.placeField(job), string.match(job, "([^:]+)$")
  if found.is_reading then
    redis.call("HSET", key, field, found.last)
    return nil
  end
  if not found.is_told and (state == "ACTIVE" or state == "BLOCKED") then
    ask(key, field, id, now)
    return nil
  end
  if redis.call("HDEL", key, field, "x.asks") == 2 and state ~= "BLOCKED" then
    local owner, group_id = string.match(key, "^(.*):groups:([^:]+)$")
    redis.call("ZREM", groups.asking(owner), group_id)
  end
  local known = found.known
  local value = known.value or "it is gone, and nobody knows how it ended"
  return { id = id, state = known.state or "failed", at = 0, value = value,
    started = known.is_started or not known.is_added, is_open = not known.state or value == STALLED }
end
