--[[
  purgeDeadLetters: remove one slice of the dead letters for good.

  Keys      base, wait, paused, prioritized, delayed, meta, events, sweep (this run), latest (run with
            this filter), turning
  Args      place str ("wait", "paused", "prioritized" or "delayed"), offset int, anchor str?,
            turn str?, behind int (how many may be left at the tail), examine int, limit int,
            bytes int (of payload in one slice), not_after int? (the time when the walk began),
            filter {name, failed_reason, fingerprint, source_queue, since, before},
            is_sure bool? (everything here is a dead letter; else only those with a note are removed),
            accepted {id -> true}? (the client has checked these),
            run str, resumed str? (the run that it goes on with), step int,
            done int (in earlier slices)
  Returns   as JSON {is_done, next (the place to continue with), offset, anchor, turn, count, asked,
            examined, length, not_after}
  Emits     cleaned, waiting (of a parent that waited for a removed job)
  Keeps     I1
  Flags     allow-oom
  Cost      O(examine + behind)
]]
function calls.purgeDeadLetters(KEYS, a, ARGV)
  local base, wait, paused, prioritized, delayed, meta, events, sweep, latest, turning = unpack(KEYS)
  local queue = queues.at(base)
  local gate = gates.read(queue)
  local now = clock.now()
  local not_after = a.not_after or now
  local purged = {}
  local hasRoom = letters.byteBudget(a.bytes)

  local function visit(letter)
    local answer = letters.judge(letter, a.filter, not_after)
    if answer == "ask" and a.accepted and a.accepted[letter.id] then answer = "take" end
    if letter.is_damaged and answer == "ask" then return "leave" end
    if answer ~= "take" then return answer end
    if not (a.is_sure or gate.holds_letters or letters.noteOf(letter)) then return "leave" end
    if not hasRoom(letter) then return "stop" end
    if letters.noteOf(letter) or letter.is_damaged then
      purged[#purged + 1] = letter.key
    else
      jobs.removeAny(queue, letter.id) -- not one of ours: it may have a parent, a group, and so on
    end
    return "take"
  end

  return walks.walk(queue, sweep, latest, turning, a, now, visit, function(result)
    jobs.deleteAll(purged)
    result.not_after = not_after
    if result.count > 0 then
      redis.call("HINCRBY", meta, "x.purged", result.count)
      journal.emitTrimmed(queue, gate, "cleaned", "count", result.count)
    end
  end)
end
