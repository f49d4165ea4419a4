#!lua flags=no-writes
--[[
  surveyDeadLetters: count one slice of the dead letters, by fingerprint.

  Keys      base, wait, paused
  Args      list str ("wait" or "paused"), offset int, anchor str?, examine int, not_after int?,
            is_for_replay bool? (those that a replay would leave are not counted), force bool?,
            max_replays int?, filter {name, failed_reason, fingerprint, source_queue, since, before}
  Returns   as JSON {is_done, offset, anchor, count, asked, held, examined, not_after,
            groups {fingerprint -> {count, first, last, example}}}
  Cost      O(examine)
]]
local base, wait, paused = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/survey"
--- @include "includes/letters"

local queue = queueAt(base)
local not_after = a.not_after or clock()
local list = queue[a.list]
local offset = findPlace(list, a.offset, a.anchor)
local ids = redis.call("LRANGE", list, -(offset + a.examine), -(offset + 1))
local asked, groups, count, held = {}, {}, 0, 0
for i = #ids, 1, -1 do
  local letter = readLetter(queue, ids[i])
  local answer = judge(letter, a.filter, not_after)
  if answer == "take" and not noteOf(letter) then answer = "ask" end
  if answer == "ask" then
    asked[#asked + 1] = letter.id
  elseif answer == "take" then
    if a.is_for_replay and isHeld(letter, a.max_replays, a.force) then
      held = held + 1
    else
      count = count + 1
      addToGroup(groups, letter)
    end
  end
end
return cjson.encode({ is_done = #ids < a.examine, offset = offset + #ids, anchor = ids[1] or "",
  count = count, asked = #asked > 0 and asked or nil, held = held, examined = #ids, not_after = not_after,
  groups = groups })
