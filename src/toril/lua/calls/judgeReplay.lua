--[[
  judgeReplay: would a group take a job back whose dead letter is in another slot?

  The group decides again when the letter arrives.

  Keys      base (of the queue that owns the group)
  Args      member str (the job's membership), new_id str, target str (the base of the queue that the job
            goes to), force bool?
  Returns   the id that the job will have
  Refuses   WRONG_GROUP_STATE   its group does not take it   InvalidGroupStateError
  Flags     no-writes
  Cost      O(members)
]]
function calls.judgeReplay(KEYS, a, ARGV)
  local base = unpack(KEYS)
  local id = replays.idInGroup(a.member, a.target, a.new_id)
  if id then return id end
  return a.force and a.new_id or refusals.WRONG_GROUP_STATE
end
