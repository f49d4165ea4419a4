--- One slice of a walk that takes dead letters out of a list.

--- Take what is at these negative indexes, which fall from the tail on, out of a list. All are marked,
--- then removed in one pass from the tail.
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
--- "leave", "ask", or "stop" when the slice is full; those taken leave their place, and the client
--- decides about those asked about.
local function examineLetters(queue, a, fence, visit)
  local offset = letters.findPlace(queue, a.place, a.offset, a.anchor)
  local ids = letters.idsFrom(queue, a.place, offset, a.examine)
  local taken_ids = {}
  local seen = { taken = {}, asked = {}, examined = 0, again = a.offset - offset, left = offset,
    anchor = a.anchor, kept = offset > 0 and a.anchor or "", asked_before = 0,
    is_end = #ids < a.examine }
  for _, id in ipairs(ids) do
    if fence[id] then
      seen.is_end = true
      break
    end
    local answer = #seen.taken < a.limit and visit(letters.read(queue, id)) or "stop"
    if answer == "stop" then
      seen.is_end = false
      break
    end
    seen.examined = seen.examined + 1
    if answer == "take" then
      local n = #seen.taken + 1
      seen.taken[n], taken_ids[n] = -(offset + seen.examined), id
    else
      seen.left, seen.anchor = seen.left + 1, id
      if answer == "ask" then
        seen.asked[#seen.asked + 1] = id
      else
        seen.kept, seen.asked_before = id, #seen.asked
      end
    end
  end
  if letters.isList(a.place) then
    takeOutAt(queue[a.place], seen.taken)
  elseif #taken_ids > 0 then
    redis.call("ZREM", queue[a.place], unpack(taken_ids))
  end
  return seen
end

--- In case the reply is lost, and for a week for a client that resumes the walk: `latest` names the last
--- run with the same filter.
local function rememberSlice(sweep, latest, a, result, reply)
  redis.call("HSET", sweep, "step", a.step, "place", a.place, "done", a.done + result.count,
    "reply", reply, "filter", cjson.encode(a.filter))
  if result.is_done and not result.next and not result.asked then
    redis.call("PEXPIRE", sweep, 60000)
    local named = redis.call("GET", latest)
    if named == a.run or named == a.resumed then redis.call("DEL", latest) end
    return
  end
  redis.call("PEXPIRE", sweep, 604800000)
  redis.call("SET", latest, a.run, "PX", 604800000)
end

--- A slice of the walk `a`, whose state is in `sweep` and, while it turns the list, in `turning`.
--- A run belongs to one client and its steps increase, so a slice that was already done is answered from
--- memory: its reply was lost, or it was delayed and overtaken. Else `visit` is called for each letter,
--- and `finish` with the result, to complete the reply.
function walks.walk(queue, sweep, latest, turning, a, now, visit, finish)
  local last = hashes.read(sweep, "step", "reply")
  if last.step and tonumber(last.step) >= a.step then return last.reply end

  local list = queue[a.place]
  local turn = turns.read(turning, a)
  if a.turn and not turn then
    -- Somebody has turned the list since: it is no longer known what was left where.
    a.offset, a.anchor = 0, nil
  end
  local seen
  if turn and (turn.is_over or turns.isFenceLost(queue, turn)) then
    turn.is_over = true
    seen = { taken = {}, asked = {}, examined = 0, again = 0, left = a.offset, anchor = a.anchor,
      is_end = true }
  else
    seen = examineLetters(queue, a, turn and turn.fence or {}, visit)
  end
  local is_done = seen.is_end and not turn
  -- The client must find the letters it is asked about in their place.
  if #seen.asked == 0 and letters.isList(a.place) then
    turn, is_done = turns.goRound(queue, list, turn, seen, turning, a, now)
  end
  if turn then turns.save(turning, turn, seen, now) end

  local result = { is_done = is_done, next = is_done and letters.nextPlace(queue, a.place) or nil,
    offset = seen.left, anchor = seen.anchor or "", count = #seen.taken,
    asked = #seen.asked > 0 and seen.asked or nil, kept = seen.kept, asked_before = seen.asked_before,
    examined = seen.examined, length = letters.count(queue), turn = turn and turn.owner or "" }
  finish(result)
  local reply = cjson.encode(result)
  rememberSlice(sweep, latest, a, result, reply)
  return reply
end
