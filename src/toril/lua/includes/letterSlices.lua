--- One slice of a walk that takes dead letters out of a list.
--- @include "includes/letters"
--- @include "includes/letterTurn"

--- Take out of a list what stands at these negative indexes, which fall from the tail on. All are
--- marked, then removed in one pass from the tail.
local function takeOutAt(list, indexes)
  local count = #indexes
  if count == 0 then return end
  if -indexes[count] == count then
    redis.call("RPOP", list, count)
    return
  end
  for _, index in ipairs(indexes) do
    redis.call("LSET", list, index, "")
  end
  redis.call("LREM", list, -count, "")
end

--- Show up to `examine` letters to `visit`, until it has taken `limit` of them. It answers "take",
--- "leave" or "ask"; those taken go out of the list, those asked about are the client's to decide.
local function examineLetters(queue, list, a, fence, visit)
  local offset = findPlace(list, a.offset, a.anchor)
  local ids = redis.call("LRANGE", list, -(offset + a.examine), -(offset + 1))
  local seen = { taken = {}, asked = {}, examined = 0, again = a.offset - offset, left = offset,
    anchor = a.anchor, is_end = #ids < a.examine }
  for i = #ids, 1, -1 do
    if fence[ids[i]] then
      seen.is_end = true
      break
    end
    if #seen.taken >= a.limit then
      seen.is_end = false
      break
    end
    seen.examined = seen.examined + 1
    local answer = visit(readLetter(queue, ids[i]))
    if answer == "take" then
      seen.taken[#seen.taken + 1] = -(offset + seen.examined)
    else
      seen.left, seen.anchor = seen.left + 1, ids[i]
      if answer == "ask" then seen.asked[#seen.asked + 1] = ids[i] end
    end
  end
  takeOutAt(list, seen.taken)
  return seen
end

--- A slice of the walk `a`, whose state is in `sweep` and, while it turns the list, in `turning`.
--- A slice that was done already is answered as it was: its reply got lost. Else `visit` is called for
--- each letter, and `finish` with what came of them, to complete the reply.
local function walkLetters(queue, sweep, turning, a, now, visit, finish)
  local last = redis.call("HMGET", sweep, "run", "step", "reply")
  if last[1] == a.run and tonumber(last[2]) == a.step then return last[3] end

  local list = queue[a.list]
  local turn = readTurn(turning, a)
  if a.turn and not turn then
    -- Somebody has turned the list on since: what was left where is not known any more.
    a.offset, a.anchor = 0, nil
  end
  local seen
  if turn and (turn.is_over or isFenceLost(queue, turn)) then
    turn.is_over = true
    seen = { taken = {}, asked = {}, examined = 0, again = 0, left = a.offset, anchor = a.anchor,
      is_end = true }
  else
    seen = examineLetters(queue, list, a, turn and turn.fence or {}, visit)
  end
  local is_done = seen.is_end and not turn
  -- What the client is asked about it must find in its place.
  if #seen.asked == 0 then
    turn, is_done = goRound(queue, list, turn, seen, turning, a, now)
  end
  if turn then saveTurn(turning, turn, seen, now) end

  local result = { is_done = is_done, offset = seen.left, anchor = seen.anchor or "",
    count = #seen.taken, asked = #seen.asked > 0 and seen.asked or nil, examined = seen.examined,
    length = redis.call("LLEN", list), turn = turn and turn.owner or "" }
  finish(result)
  -- For a lost reply and, for a week, for whoever resumes the walk.
  local reply = cjson.encode(result)
  redis.call("HSET", sweep, "run", a.run, "step", a.step, "list", a.list,
    "done", a.done + result.count, "reply", reply)
  redis.call("PEXPIRE", sweep, a.is_last and is_done and 60000 or 604800000)
  return reply
end
