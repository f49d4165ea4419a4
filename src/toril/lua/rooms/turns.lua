--- Turning a list while a walk takes letters out of it.
---
--- Letters are taken out near the tail. Those that the walk leaves must not pile up there, or each
--- further slice would have to search through all of them; so beyond `a.behind` of them the oldest move
--- round to the head, below what has arrived since. After a full turn the order is the old one.
---
--- A turn is kept as JSON: its owner (the run of the walk that began it), `pivot` (the letter above
--- which the next one goes), `fence` (the first ones that went round: there the walk ends), `home` (the
--- letters that belong at the tail), `left` (how many letters the walk has yet to examine). One walk at a
--- time turns a list; after a minute of silence another may take over the turn and bring it home.

local TURN_EXPIRES_MS = 604800000
local TURN_IS_STALE_MS = 60000
local MOST_ROUND = 1000
local MOST_ARRIVED = 2000
local LONGEST_FENCE = 20

local function asSet(ids)
  local set = {}
  for _, id in ipairs(ids) do
    set[id] = true
  end
  return set
end

local function decodeTurn(turning)
  local text = redis.call("GET", turning)
  return text and cjson.decode(text)
end

--- The turn of this walk, if it has one and nobody has taken it over.
function turns.read(turning, a)
  local turn = a.turn and decodeTurn(turning)
  if not turn or turn.owner ~= a.turn or turn.list ~= a.place then return nil end
  turn.fence, turn.fence_ids = asSet(turn.fence), turn.fence
  return turn
end

--- Begin a turn, unless another walk is turning the list. An abandoned turn tells where home is.
local function beginTurn(list, turning, a, seen, now)
  local other = decodeTurn(turning)
  if other and now - other.at < TURN_IS_STALE_MS then return nil end
  local turn = { owner = a.run, list = a.place, pivot = redis.call("LINDEX", list, 0),
    fence_ids = {}, left = redis.call("LLEN", list) - seen.left + seen.examined, returned = 0 }
  if other and other.list == a.place then turn.home = other.home or other.fence end
  return turn
end

function turns.save(turning, turn, seen, now)
  redis.call("SET", turning, cjson.encode({ owner = turn.owner, list = turn.list, at = now,
    pivot = turn.pivot, fence = turn.fence_ids, home = turn.home,
    left = turn.left - seen.examined + seen.again, returned = turn.returned, is_over = turn.is_over }),
    "PX", TURN_EXPIRES_MS)
end

local function areGone(queue, ids)
  local keys = {}
  for i, id in ipairs(ids) do
    keys[i] = queue.base .. ":" .. id
  end
  return #keys == 0 or redis.call("EXISTS", unpack(keys)) == 0
end

--- Has the walk looked at as many letters as there were, and is its fence gone?
function turns.isFenceLost(queue, turn)
  return turn.left <= 0 and areGone(queue, turn.fence_ids)
end

--- Move the last `count` ids of the list to its head, in their order, below what has arrived there.
local function bringRound(list, turn, count)
  if count == 0 then return end
  local ids = redis.call("RPOP", list, count)
  if not ids then return end
  local arrived = redis.call("LPOS", list, turn.pivot, "MAXLEN", MOST_ARRIVED)
  local newer = arrived and arrived > 0 and redis.call("LPOP", list, arrived) or {}
  redis.call("LPUSH", list, unpack(ids))
  for i = 1, math.floor(#newer / 2) do
    newer[i], newer[#newer + 1 - i] = newer[#newer + 1 - i], newer[i]
  end
  if #newer > 0 then redis.call("LPUSH", list, unpack(newer)) end
  turn.pivot = ids[#ids]
  for _, id in ipairs(ids) do
    if #turn.fence_ids == LONGEST_FENCE then break end
    turn.fence_ids[#turn.fence_ids + 1] = id
  end
end

--- How many of the next ids that can be brought round are behind home, and whether home is among them.
local function behindHome(list, home)
  local ids = redis.call("LRANGE", list, -MOST_ROUND, -1) -- bounded: MOST_ROUND
  for i = #ids, 1, -1 do
    if home[ids[i]] then return #ids - i, true end
  end
  return #ids, false
end

--- The walk is over: turn the list until its oldest letter is at the tail again. If it is no longer
--- known which that is, only what the walk left behind goes round.
local function bringHome(queue, list, turn, seen)
  local home_ids = turn.home or turn.fence_ids
  local count, is_home = behindHome(list, asSet(home_ids))
  if not is_home and areGone(queue, home_ids) then
    count = math.min(seen.left, MOST_ROUND)
    is_home = count == seen.left
  end
  bringRound(list, turn, count)
  turn.returned = turn.returned + count
  seen.left = math.max(seen.left - count, 0)
  return is_home or turn.returned > redis.call("LLEN", list)
end

--- Bring round what must go round after a slice. Returns the walk's turn, if it has one now, and whether
--- the walk through this list is done.
function turns.goRound(queue, list, turn, seen, turning, a, now)
  if turn and seen.is_end then
    turn.is_over = true
    if not bringHome(queue, list, turn, seen) then return turn, false end
    redis.call("DEL", turning)
    return nil, true
  end
  if seen.left > a.behind and not seen.is_end then
    turn = turn or beginTurn(list, turning, a, seen, now)
    if turn then
      local count = math.min(seen.left - a.behind, MOST_ROUND)
      bringRound(list, turn, count)
      seen.left = seen.left - count
    end
  end
  return turn, seen.is_end
end

--- Are the oldest letters at the tail of this list? Not while a walk turns it; of a turn that nobody goes
--- on with, each call brings a part home. Whoever resumes its walk begins anew: the owner is gone.
function turns.isHome(queue, turning, list, now)
  local turn = decodeTurn(turning)
  if not turn then return true end
  if now - (turn.at or now) < TURN_IS_STALE_MS then return false end
  turn.fence_ids = turn.fence
  if bringHome(queue, list, turn, { left = 0 }) then
    redis.call("DEL", turning)
    return true
  end
  redis.call("SET", turning, cjson.encode({ owner = "", list = turn.list, at = turn.at, pivot = turn.pivot,
    fence = turn.fence_ids, home = turn.home, left = turn.left, returned = turn.returned }), "KEEPTTL")
  return false
end
