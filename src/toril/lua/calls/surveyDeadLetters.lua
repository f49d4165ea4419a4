--[[
  surveyDeadLetters: count one slice of the dead letters, by fingerprint.

  Keys      base, wait, paused, prioritized, delayed
  Args      place str ("wait", "paused", "prioritized" or "delayed"), offset int, anchor str?, examine int, not_after int?,
            is_for_replay bool? (do not count those that a replay would leave), force bool?,
            max_replays int?, filter {name, failed_reason, fingerprint, source_queue, since, before}
  Returns   as JSON {is_done, next (the place to continue with), offset, anchor, count, asked, held,
            grouped, examined, not_after, groups {fingerprint -> {count, first, last, example}}}
  Flags     no-writes
  Cost      O(examine)
]]
function calls.surveyDeadLetters(KEYS, a, ARGV)
  local base, wait, paused, prioritized, delayed = unpack(KEYS)
  local queue = queues.at(base)
  local not_after = a.not_after or clock.now()
  local offset = letters.findPlace(queue, a.place, a.offset, a.anchor)
  local ids = letters.idsFrom(queue, a.place, offset, a.examine)
  local asked, by_fingerprint, count, held = {}, {}, 0, { replays = 0, group = 0 }
  for _, id in ipairs(ids) do
    local letter = letters.read(queue, id)
    local answer = letters.judge(letter, a.filter, not_after)
    if answer == "take" and not letters.noteOf(letter) then answer = "ask" end
    if letter.is_damaged then
      answer = "leave"
    end
    if answer == "take" and a.is_for_replay and letters.isAway(letter) then answer = "ask" end
    if answer == "ask" then
      asked[#asked + 1] = letter.id
    elseif answer == "take" then
      local why = a.is_for_replay and letters.whyHeld(letter, a.max_replays, a.force)
      if why then
        held[why] = held[why] + 1
      else
        count = count + 1
        letters.survey(by_fingerprint, letter)
      end
    end
  end
  local is_done = #ids < a.examine
  return cjson.encode({ is_done = is_done, next = is_done and letters.nextPlace(queue, a.place) or nil,
    offset = offset + #ids, anchor = ids[#ids] or "", count = count, asked = #asked > 0 and asked or nil,
    held = held.replays + held.group, grouped = held.group, examined = #ids, not_after = not_after,
    groups = by_fingerprint })
end
