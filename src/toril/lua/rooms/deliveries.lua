--- What a queue does with parcels from other slots: each verb calls the same function as within a slot.
--- A parcel is delivered once, however often it arrives: its id is remembered for a day.

local DAY_MS, MOST_REMEMBERED, FORGOTTEN_AT_ONCE = 86400000, 1000000, 200

local verbs = {}

--- A job that failed for good becomes a letter here, or a letter comes back that a group does not take.
function verbs.bury(round, body, id)
  local letters_here = round.letters
  if not letters_here then
    letters_here = burials.reopen(round.queue, round.now)
    round.letters = letters_here
  end
  letters_here.keep = body.keep
  burials.receive(letters_here, body.id or id, body.letter)
end

--- A dead letter comes back as a job of this queue.
function verbs.insert(round, body)
  if redis.call("EXISTS", round.queue.base .. ":" .. body.job.id) == 1 then return end
  round.jobs = round.jobs or arrivals.at(round.queue)
  replays.insert(round.jobs, body.job, body.data, body.opts, round.now)
end

--- A child of a parent here ended in another slot.
function verbs.childEnded(round, body)
  parents.childEnded(body.parent_key, body.parent, body.child, body.state, body.value, round.now)
end

function verbs.relink(_, body)
  parents.relink(body.child, body.parent_key)
end

function verbs.unlink(_, body)
  parents.unlink(body.child, body.parent_key, body.parent, body.silently)
end

--- Remove a child whose parent was removed in another slot. A running child stays: it will find no parent.
function verbs.remove(round, body)
  local refusal, is_whole = removals.remove(round.queue, body.id, true, body.slice)
  if not refusal and not is_whole then return 1 end
end

--- A tree whose parent is in another slot and already waits for it. While its lane is full, it waits.
function verbs.addFlow(round, body)
  local results = flows.add(flows.homes(body.queues), body.nodes, body.words, 0, round.now)
  if results[1] == refusals.LANE_FULL then return 1 end
  if results[1] < 0 then return "job " .. body.nodes[results[2]].id .. " exists and has another parent" end
end

--- A job of a group whose record is in another slot comes here.
function verbs.addMember(round, body, id)
  round.jobs = round.jobs or arrivals.at(round.queue)
  remotes.receive(round.jobs, body, id, round.now)
end

--- The letter of a job of a group here is replayed in another slot.
function verbs.rejoin(round, body)
  replays.receive(body, round.now)
end

--- A job of a group here ended in another slot.
function verbs.memberEnded(round, body)
  groups.onSettled(body.membership, body.job, body.state, body.ended, round.now)
end

--- A finished job of a group here runs again in another slot.
function verbs.memberRetried(round, body)
  groups.onRetried(body.membership, body.job, round.now)
end

--- A group in another slot has turned, recreates jobs, or asks about them.
function verbs.cancelMembers(round, body)
  remotes.cancelHere(round.queue, body)
end

function verbs.removeMember(round, body)
  remotes.removeHere(round.queue, body)
end

function verbs.seekMembers(round, body)
  remotes.seekHere(round.queue, body)
end

function verbs.memberSought(round, body)
  remotes.sought(body, round.now)
end

function verbs.removeLetter(_, body)
  stages.removeLetterAt(body.letter, body.key, body.membership, { left = body.most })
end

--- Workers here watch the time limits of groups in another slot.
function verbs.shareGroups(round, body)
  stages.share(body.owner, round.queue.base, body.until_ms, body.first_ms)
end

local function isKnown(queue, ids)
  local known = {}
  local scores = redis.call("ZMSCORE", queue.base .. ":toril:received", unpack(ids))
  for i, id in ipairs(ids) do known[id] = scores[i] ~= false end
  return known
end

--- Remember what was delivered, and forget what is older than a day: enough to keep the memory from
--- growing, and never more than a call may do.
local function remember(queue, ids, now)
  if #ids == 0 then return end
  local received, words = queue.base .. ":toril:received", {}
  for i, id in ipairs(ids) do words[2 * i - 1], words[2 * i] = clock.stamp(now), id end
  redis.call("ZADD", received, unpack(words))
  redis.call("PEXPIRE", received, DAY_MS)
  local old = redis.call("ZRANGEBYSCORE", received, "-inf", clock.stamp(now - DAY_MS), "LIMIT", 0,
    FORGOTTEN_AT_ONCE + #ids)
  if #old > 0 then redis.call("ZREM", received, unpack(old)) end
  local excess = redis.call("ZCARD", received) - MOST_REMEMBERED
  if excess > 0 then redis.call("ZPOPMIN", received, math.min(excess, FORGOTTEN_AT_ONCE + #ids)) end
end

--- Was the parcel that another one must follow delivered, in this call or earlier? It may follow several.
local function hasTaken(round, after)
  for _, id in ipairs(type(after) == "table" and after or { after }) do
    if not round.known[id] and not redis.call("ZSCORE", round.queue.base .. ":toril:received", id) then
      return false
    end
  end
  return true
end

--- What a parcel says; nothing if it cannot be read.
local function open(text)
  local is_read, body = pcall(cmsgpack.unpack, text)
  return is_read and type(body) == "table" and body or nil
end

local ARRIVING = { "wait", "paused", "active", "prioritized", "delayed", "marker", "meta", "id", "pc", "events" }

--- The keys of their queue that these parcels need, as damage.isSound takes them: nothing for all of
--- them. Most parcels are members that come and members that have completed: a member outside lanes
--- needs the keys of a new job, and a completion only those of its group.
local function neededBy(opened)
  local needed = {}
  for _, body in pairs(opened) do
    local job = body.verb == "addMember" and type(body.job) == "table" and body.job
    local is_plain = job and not job.lane and not job.de
    if is_plain then
      for _, name in ipairs(ARRIVING) do needed[name] = true end
    elseif body.verb ~= "memberEnded" or body.state ~= "completed" then
      return nil
    end
  end
  return needed
end

--- 0 if the parcel is delivered, 1 if it has to come again, or why it is refused.
local function deliver(round, id, body)
  if not body then return "it cannot be read" end
  local verb = verbs[body.verb]
  if not verb then return "the verb " .. tostring(body.verb) .. " is not known; update this program" end
  if body.after and not hasTaken(round, body.after) then return 1 end
  local is_done, answer = pcall(verb, round, body, id)
  if not is_done then return damage.of(round.queue, answer) end
  return answer or 0
end

--- Deliver parcels with these ids and bodies; returns an answer for each.
function deliveries.receive(queue, ids, bodies, now)
  local answers, opened = {}, {}
  for i, text in ipairs(bodies) do opened[i] = open(text) end
  if not damage.isSound(queue, neededBy(opened)) then
    for i in ipairs(ids) do answers[i] = "a key of its target holds a value of another kind" end
    return answers
  end
  local delivered, known = {}, isKnown(queue, ids)
  local round = { queue = queue, now = now, known = known }
  for i, id in ipairs(ids) do
    answers[i] = known[id] and 0 or deliver(round, id, opened[i])
    if answers[i] == 0 and not known[id] then
      delivered[#delivered + 1] = id
      known[id] = true
    end
  end
  if round.letters then burials.arrive(round.letters, now) end
  if round.jobs then arrivals.close(round.jobs) end
  remember(queue, delivered, now)
  return answers
end
