--[[
  replayDeadLetters: send one slice of the dead letters back to the queues they came from.

  An id that is in use is skipped. Nothing that became a dead letter after the walk began is touched, so a job that fails again does
  not circle. Letters that can only be judged by their data, or whose data somebody changed, are left
  in place and named in the reply.

  Keys      base, wait, paused, prioritized, delayed, meta, events, sweep (this run), latest (run with
            this filter), turning
  Args      place str ("wait", "paused", "prioritized" or "delayed"), offset int, anchor str?,
            turn str?, behind int (how many may be left at the tail), examine int, limit int,
            bytes int (of payload in one slice), not_after int? (the time when the walk began),
            filter {name, failed_reason, fingerprint, source_queue, since, before},
            ids list of str (for the new jobs), prefix str,
            keep_delay bool?, by str?,
            max_replays int?, force bool?, to str? (another queue), asks bool? (the client changes the data
            of each one), seeks_homes bool? (ask about lanes of queues with partitions),
            changes {opts, delay, run_at, priority, lifo, lane, order_ms}?,
            run str, resumed str? (the run that it goes on with), step int, done int (in earlier slices)
  Returns   as JSON {is_done, next (the place to continue with), offset, anchor, turn, count, asked,
            held, grouped (those held because of their groups), examined, length, not_after}
  Emits     added, waiting, delayed, removed
  Keeps     I1, I4, I11
  Cost      O(examine + behind)
]]
--- Send a letter, if it goes. What it holds must not end the call: those before it are on their way. A
--- problem of the queue that it goes to is raised before any letter of a slice is sent.
local function trySend(send, letter, queue, a, is_first)
  local is_done, answer = pcall(send, letter)
  if is_done then return answer end
  local note = letters.noteOf(letter)
  local source = a.to or note and note.source
  local target = source and queues.at(a.prefix .. ":" .. source) or queue
  local is_its_fault, problem = pcall(damage.of, target, answer)
  if is_its_fault then return "leave" end
  if not is_first then return "stop" end -- the next slice begins with it
  error(problem, 0)
end

function calls.replayDeadLetters(KEYS, a, ARGV)
  local base, wait, paused, prioritized, delayed, meta, events, sweep, latest, turning = unpack(KEYS)
  local queue = queues.at(base)
  local gate = gates.read(queue)
  local now = clock.now()
  local not_after = a.not_after or now
  local sources, gone, held, used = {}, {}, { replays = 0, group = 0 }, 0
  local hasRoom = letters.byteBudget(a.bytes)

  --- The next of the given ids that no job of this queue has; nothing when all are used up.
  local function findFreeId(source)
    local is_away = parcels.isAway(a.prefix .. ":" .. source)
    for i = used + 1, #a.ids do
      if is_away or redis.call("EXISTS", a.prefix .. ":" .. source .. ":" .. a.ids[i]) == 0 then return i end
    end
    return nil
  end

  local function send(letter)
    local answer = letters.judge(letter, a.filter, not_after)
    if letter.is_damaged then return "leave" end
    if answer ~= "take" then return answer end
    local note = letters.noteOf(letter)
    local source = a.to or note and note.source
    if not note or not parcels.canReach(a.prefix .. ":" .. source) then return "ask" end
    local why = letters.whyHeld(letter, a.max_replays, a.force)
    if why then
      held[why] = held[why] + 1
      return "leave"
    end
    if a.asks or a.seeks_homes and replays.mayHaveMoved(note, a.changes) then return "ask" end
    if replays.isAgainstLane(note, a.changes) or letters.isAway(letter) then return "ask" end
    local free = findFreeId(source)
    if not free or not hasRoom(letter) then return "stop" end
    local new_id = replays.replay(queue, letter.id, a.ids[free],
      { prefix = a.prefix, source = source, keep_delay = a.keep_delay, by = a.by, changes = a.changes },
      sources, now)
    if not new_id then return "ask" end
    used = free
    gone[#gone + 1] = { letter.id, source, new_id }
    return "take"
  end

  local function visit(letter)
    return trySend(send, letter, queue, a, used == 0)
  end

  return walks.walk(queue, sweep, latest, turning, a, now, visit, function(result)
    replays.wakeSources(sources)
    for _, one in ipairs(gone) do
      journal.emitTrimmed(queue, gate, "removed", "jobId", one[1], "prev", letters.isList(a.place) and "waiting" or a.place,
        "queue", one[2], "replayedAs", one[3])
    end
    result.held, result.grouped = held.replays + held.group, held.group
    result.not_after = not_after
    if result.count > 0 then
      redis.call("HINCRBY", meta, "x.replayed", result.count)
    end
  end)
end
