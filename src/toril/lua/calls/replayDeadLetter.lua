--[[
  replayDeadLetter: send one dead letter back to the queue it came from.

  The letter is removed and the new job added in this one call, or nothing happens; if two callers
  replay the same letter, one is told that it is gone.

  Keys      base, wait, paused, prioritized, delayed, waiting_children, completed, failed, meta, events
  Args      id str, new_id str, source str (the queue's name), prefix str, keep_delay bool?, by str?,
            max_replays int?, has_data bool? (the client took the letter apart),
            job str? (the id of its first job), is_repaired bool?,
            priority int?, delay int? (for a letter that another program wrote),
            changes {opts, delay, run_at, priority, lifo, lane, order_ms}? (of the first job's options),
            force bool?, dry_run bool? (only check), resend bool?
            After the map, raw, if has_data: the data, the options as JSON or nothing.
  Returns   the new id, or 1 if the metadata cannot be cut out because somebody changed the data
  Refuses   MISSING             there is no such dead letter   DeadLetterNotFoundError
            RUNNING             it is running   JobLockedError
            REPLAYED_TOO_OFTEN  it has been replayed too often   TooManyReplaysError
            ID_TAKEN            the new id is in use   RefusedError
            WRONG_GROUP_STATE   its group is over, being undone, or does not wait for it   InvalidGroupStateError
  Emits     added, waiting, delayed, removed
  Keeps     I1, I4
  Cost      O(1), and a search in the list from the nearer end
]]
--- Ids are assigned in order, so the one in the middle tells which end is nearer.
local function nearerEnd(list, id)
  local length = redis.call("LLEN", list)
  local middle = tonumber(length > 1000 and redis.call("LINDEX", list, math.floor(length / 2)) or nil)
  local number = tonumber(id)
  return middle and number and number < middle and -1 or 1
end

local function takeOutLetter(queue, id)
  for _, list in ipairs({ queue.wait, queue.paused }) do
    if redis.call("LREM", list, nearerEnd(list, id), id) > 0 then return "waiting" end
  end
  for _, place in ipairs({ "prioritized", "delayed", "waiting_children", "completed", "failed" }) do
    if redis.call("ZREM", queue[place], id) == 1 then
      return (string.gsub(place, "_", "-"))
    end
  end
  return nil
end

--- Why it cannot be replayed, or nothing; 1 if the client has to take its data apart.
local function refuse(queue, a, given_opts, source_base)
  local letter = queue.base .. ":" .. a.id
  local known = hashes.read(letter, "name", "data", "x.letter", "x.data", "x.wrapped", "x.replays",
    "x.member")
  if not known.name then return refusals.MISSING end
  if (not given_opts or given_opts == "") and not replays.firstData(known.data,
      letters.readNote(known["x.letter"]), known["x.data"], known["x.wrapped"]) then
    return 1
  end
  if a.max_replays and (tonumber(known["x.replays"]) or 0) >= a.max_replays then return refusals.REPLAYED_TOO_OFTEN end
  if not a.force and letters.isBarred(known["x.member"]) then return refusals.WRONG_GROUP_STATE end
  if redis.call("EXISTS", letter .. ":lock") == 1 then return refusals.RUNNING end
  if not parcels.isAway(source_base) and redis.call("EXISTS", source_base .. ":" .. a.new_id) == 1 then
    return refusals.ID_TAKEN
  end
  return a.dry_run and a.new_id or nil
end

--- The argument `how` of replays.replay.
local function wayOf(a, given_data, given_opts)
  local how = { prefix = a.prefix, source = a.source, keep_delay = a.keep_delay, by = a.by,
    job = a.job, is_repaired = a.is_repaired, priority = a.priority, delay = a.delay,
    changes = a.changes, force = a.force }
  if a.has_data then
    how.data = given_data
    if given_opts ~= "" then how.opts = given_opts end
  end
  return how
end

function calls.replayDeadLetter(KEYS, a, ARGV)
  local base, wait, paused, prioritized, delayed, waiting_children, completed, failed, meta, events = unpack(KEYS)
  local given_data = ARGV[2]
  local given_opts = ARGV[3]
  local queue = queues.at(base)
  local answer = a.resend and requests.answerTo(queue, a.new_id)
  if answer then return answer end
  local refusal = refuse(queue, a, given_opts, a.prefix .. ":" .. a.source)
  if refusal then return refusal end
  local place = takeOutLetter(queue, a.id)
  if not place then return refusals.RUNNING end
  local sources = {}
  local new_id = replays.replay(queue, a.id, a.new_id, wayOf(a, given_data, given_opts), sources,
    clock.now())
  replays.wakeSources(sources)
  requests.remember(queue, a.new_id, new_id)
  redis.call("HINCRBY", meta, "x.replayed", 1)
  journal.emitTrimmed(queue, gates.read(queue), "removed", "jobId", a.id, "prev", place,
    "queue", a.source, "replayedAs", new_id)
  return new_id
end
