#!lua flags=no-writes
--[[
  surveyDeadLetters: count one slice of the dead letters, by fingerprint.

  Keys      base, wait, paused, prioritized, delayed
  Args      place str ("wait", "paused", "prioritized" or "delayed"), offset int, anchor str?, examine int, not_after int?,
            is_for_replay bool? (those that a replay would leave are not counted), force bool?,
            max_replays int?, filter {name, failed_reason, fingerprint, source_queue, since, before}
  Returns   as JSON {is_done, next (the place to go on with), offset, anchor, count, asked, held,
            grouped, examined, not_after, groups {fingerprint -> {count, first, last, example}}}
  Cost      O(examine)
]]
local base, wait, paused, prioritized, delayed = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/survey"
--- @include "includes/letters"

local queue = queueAt(base)
local not_after = a.not_after or clock()
local offset = findPlace(queue, a.place, a.offset, a.anchor)
local ids = idsFrom(queue, a.place, offset, a.examine)
local asked, groups, count, held = {}, {}, 0, { replays = 0, group = 0 }
for _, id in ipairs(ids) do
  local letter = readLetter(queue, id)
  local answer = judge(letter, a.filter, not_after)
  if answer == "take" and not noteOf(letter) then answer = "ask" end
  if letter.is_damaged then
    answer = "leave"
  end
  if answer == "ask" then
    asked[#asked + 1] = letter.id
  elseif answer == "take" then
    local why = a.is_for_replay and whyHeld(letter, a.max_replays, a.force)
    if why then
      held[why] = held[why] + 1
    else
      count = count + 1
      addToGroup(groups, letter)
    end
  end
end
local is_done = #ids < a.examine
return cjson.encode({ is_done = is_done, next = is_done and nextPlace(queue, a.place) or nil,
  offset = offset + #ids, anchor = ids[#ids] or "", count = count, asked = #asked > 0 and asked or nil,
  held = held.replays + held.group, grouped = held.group, examined = #ids, not_after = not_after,
  groups = groups })
