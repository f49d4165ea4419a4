#!lua
--[[
  replayDeadLetter: send one dead letter back to the queue it came from.

  The letter goes and the new job comes in this one call, or nothing happens; of two that replay the
  same letter, one is told that it is gone.

  Keys      base, wait, paused, prioritized, delayed, waiting_children, completed, failed, meta, events
  Args      id str, new_id str, source str (the queue's name), prefix str, keep_delay bool?, by str?,
            max_replays int?, has_data bool? (the client took the letter apart),
            job str? (the id of its first job), is_repaired bool?,
            priority int?, delay int? (of a letter that another program wrote),
            changes {opts, delay, run_at, priority, lifo, lane, order_ms}? (of the first job's options),
            force bool?, dry_run bool? (only check), resend bool?
            After the map, raw, if has_data: the data, the options as JSON or nothing.
  Returns   the new id, or 1 when the metadata cannot be cut out: somebody changed the data
  Refuses   -1    there is no such dead letter                         DeadLetterNotFoundError
            -111  it is running                                        JobLockedError
            -112  it has been replayed too often                       TooManyReplaysError
            -113  the new id is in use                                 RefusedError
            -132  its group is over or being undone                    InvalidGroupStateError
  Emits     added, waiting, delayed, removed
  Keeps     I1, I4
  Cost      O(1), and a search in the list from the nearer end
]]
local base, wait, paused, prioritized, delayed, waiting_children, completed, failed, meta, events = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/deleteJob"
--- @include "includes/replay"
local given_data = ARGV[2]
local given_opts = ARGV[3]

local queue = queueAt(base)
local source_base = a.prefix .. ":" .. a.source

--- If this very call succeeded before and its reply got lost, the id of the job; that of a compensation
--- has a number behind it.
local function replayedId()
  if redis.call("EXISTS", source_base .. ":" .. a.new_id) == 1 then return a.new_id end
  local head = a.new_id .. "-c"
  for _, entry in ipairs(redis.call("XREVRANGE", source_base .. ":events", "+", "-", "COUNT", 2000)) do
    local fields = entry[2]
    if fields[2] == "added"
        and (fields[4] == a.new_id or string.sub(fields[4], 1, #head) == head) then
      return fields[4]
    end
  end
  return nil
end

--- Ids are given out in order, so the one in the middle tells which end is nearer.
local function nearerEnd(list)
  local length = redis.call("LLEN", list)
  local middle = tonumber(length > 1000 and redis.call("LINDEX", list, math.floor(length / 2)) or nil)
  local number = tonumber(a.id)
  return middle and number and number < middle and -1 or 1
end

local function takeOutLetter()
  for _, list in ipairs({ wait, paused }) do
    if redis.call("LREM", list, nearerEnd(list), a.id) > 0 then return "waiting" end
  end
  for _, place in ipairs({ "prioritized", "delayed", "waiting_children", "completed", "failed" }) do
    if redis.call("ZREM", queue[place], a.id) == 1 then
      return (string.gsub(place, "_", "-"))
    end
  end
  return nil
end

local letter = base .. ":" .. a.id
local known = redis.call("HMGET", letter, "name", "data", "x.letter", "x.data", "x.wrapped",
  "x.replays", "x.member")
if not known[1] then
  return a.resend and replayedId() or -1
end
if (not given_opts or given_opts == "")
    and not firstData(known[2], readNote(known[3]), known[4], known[5]) then
  return 1
end
if a.max_replays and (tonumber(known[6]) or 0) >= a.max_replays then return -112 end
if known[7] and not a.force and groupStateOf(known[7]) ~= "ACTIVE" then return -132 end
if redis.call("EXISTS", letter .. ":lock") == 1 then return -111 end
if redis.call("EXISTS", source_base .. ":" .. a.new_id) == 1 then return -113 end
if a.dry_run then return a.new_id end
local place = takeOutLetter()
if not place then return -111 end

local now = clock()
local how = { prefix = a.prefix, source = a.source, keep_delay = a.keep_delay, by = a.by,
  job = a.job, is_repaired = a.is_repaired, priority = a.priority, delay = a.delay,
  changes = a.changes }
if a.has_data then
  how.data = given_data
  if given_opts ~= "" then how.opts = given_opts end
end
local sources = {}
local new_id = replayLetter(queue, a.id, a.new_id, how, sources, now)
wakeSources(sources)
redis.call("HINCRBY", meta, "x.replayed", 1)
emitTrimmed(queue, readGate(queue), "removed", "jobId", a.id, "prev", place,
  "queue", a.source, "replayedAs", new_id)
return new_id
