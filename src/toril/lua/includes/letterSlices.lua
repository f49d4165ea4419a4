--- Take out of a list what stands at these negative indexes, which fall from the tail on. All are
--- marked, then removed in one pass from the nearer end.
local function takeOutAt(list, indexes)
  local count = #indexes
  if count == 0 then return end
  local deepest = -indexes[count]
  if deepest == count then
    redis.call("RPOP", list, count)
    return
  end
  for _, index in ipairs(indexes) do
    redis.call("LSET", list, index, "")
  end
  local is_near_tail = deepest * 2 <= redis.call("LLEN", list)
  redis.call("LREM", list, is_near_tail and -count or count, "")
end

--- Show up to `examine` letters to `visit`, until it has taken `limit` of them. It answers "take",
--- "leave" or "ask"; those taken go out of the list, those asked about are the client's to decide.
local function walkLetters(queue, list, a, visit)
  local offset = findPlace(list, a.offset, a.anchor)
  local ids = redis.call("LRANGE", list, -(offset + a.examine), -(offset + 1))
  local taken, asked = {}, {}
  local examined, left, anchor = 0, offset, a.anchor
  for i = #ids, 1, -1 do
    if #taken >= a.limit then break end
    examined = examined + 1
    local answer = visit(readLetter(queue, ids[i]))
    if answer == "take" then
      taken[#taken + 1] = -(offset + examined)
    else
      left, anchor = left + 1, ids[i]
      if answer == "ask" then asked[#asked + 1] = ids[i] end
    end
  end
  takeOutAt(list, taken)
  return { is_done = examined == #ids and #ids < a.examine, offset = left, anchor = anchor or "",
    count = #taken, asked = #asked > 0 and asked or nil, examined = examined, length = redis.call("LLEN", list) }
end

--- A slice that was done already is answered as it was: its reply got lost.
local function recallSlice(sweep, a)
  local last = redis.call("HMGET", sweep, "run", "step", "reply")
  if last[1] == a.run and tonumber(last[2]) == a.step then return last[3] end
  return nil
end

--- Remember how far the walk is, for a lost reply and, for a week, for whoever resumes it.
local function rememberSlice(sweep, a, result)
  local reply = cjson.encode(result)
  redis.call("HSET", sweep, "run", a.run, "step", a.step, "list", a.list,
    "done", a.done + result.count, "reply", reply)
  redis.call("PEXPIRE", sweep, a.is_last and result.is_done and 60000 or 604800000)
  return reply
end
