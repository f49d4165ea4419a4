--- Give a dead letter another life in the queue it came from: a new job with the original data and
--- options and no attempts made. The caller removes the letter from its list.
---
--- `how` = { prefix, source, keep_delay, by, data, opts, job, priority, delay, is_repaired, changes };
--- the data, the options and the id of the first job are given if the client has taken the letter apart
--- itself. `changes` = { opts (members of a JSON object), delay, run_at, priority, lifo, lane, order_ms }
--- replace those of the first life.
--- Returns nothing, and changes nothing, if somebody changed the data so that the metadata cannot be
--- cut out.

local LONGEST_HISTORY = 8192

--- The replays so far, as the inside of a JSON array.
local function historyWith(history, letter, how, now)
  local entry = '{"deadLetteredAt":' .. string.format("%.0f", letter.at)
    .. ',"replayedAt":' .. clock.stamp(now)
    .. ',"deadLetterJobId":' .. texts.quote(letter.id)
    .. ',"originalJobId":' .. (letter.quoted_id or texts.quote(how.job or ""))
    .. ',"fingerprint":' .. texts.quote(letter.note.fp or "")
    .. (how.by and ',"by":' .. texts.quote(how.by) or "")
    .. (how.is_repaired and ',"repaired":true' or "") .. "}"
  if not history or #history > LONGEST_HISTORY then return entry end
  return history .. "," .. entry
end

--- The queue that a letter goes back to, read once per call; `sources` collects them.
local function sourceAt(sources, base)
  sources[base] = sources[base] or arrivals.at(queues.at(base))
  return sources[base]
end

--- Tell the workers of each source, once, what has come back.
function replays.wakeSources(sources)
  for _, source in pairs(sources) do
    arrivals.close(source)
  end
end

--- The original data of a letter; nothing if somebody changed them so that they cannot be cut out.
function replays.firstData(data, note, raw, is_wrapped)
  return raw or note and texts.unsplice(data or "", tonumber(note.size), is_wrapped)
end

--- The id of a letter's job, as JSON, and when it was added: they come first in the metadata.
--- Nothing if somebody changed the data so that these are not where they were put.
local function firstLife(data, note)
  local from = data and texts.findMeta(data, tonumber(note.size))
  if not from then return nil end
  return string.match(data, '^{"originalJobId":(".-"),"originalTimestamp":(%d+),', from)
end

--- The options of the next life; the idempotency key stays that of the first, if there was one.
local function nextOpts(note, quoted_id, at)
  local opts, key = note.opts or '{"attempts":0}', note.key and texts.quote(note.key)
  if note.key == nil and quoted_id then
    key = string.sub(texts.quote(note.source), 1, -2) .. ":" .. string.sub(quoted_id, 2, -2) .. ":" .. at
      .. '"'
  end
  if not key then return opts end
  return string.sub(opts, 1, -2) .. (opts == "{}" and "" or ",") .. '"idempotencyKey":' .. key .. "}"
end

--- The same with the options that the caller changes: if two have the same name, the last one counts.
local function changedOpts(opts, changes)
  if changes.opts == nil or changes.opts == "" then return opts end
  return string.sub(opts, 1, -2) .. (opts == "{}" and "" or ",") .. changes.opts .. "}"
end

--- Does the caller want to place this job by priority, although its lane's order decides?
function replays.isAgainstLane(note, changes)
  return changes ~= nil and note.lane ~= nil and not changes.lane
    and ((changes.priority or 0) > 0 or changes.lifo == true)
end

--- May the lane of this job be in another partition than the one that its letter came from?
function replays.mayHaveMoved(note, changes)
  return (changes and changes.lane or note.lane) and string.find(note.source, "{.+%-%d+}")
end

--- A compensation that comes back belongs to its group as before. Its id ends with the number of its
--- member, like that of every compensation. A member that blocks its group keeps its old id. Returns its
--- id, and its membership if it has one.
local function joinGroup(membership, base, new_id, now)
  local key, kind, number = string.match(membership or "", "^(.*):(%a)(%d+)$")
  if not key then return new_id, nil end
  if kind ~= "c" then
    local member_id = stages.rejoin(key, number, base, now)
    if member_id and parcels.isAway(base) then remotes.remove(membership, base .. ":" .. member_id) end
    return member_id or new_id, member_id and membership
  end
  local id = new_id .. "-c" .. number
  if not groups.reviveCompensation(key, groups.findCompensation(key, number), base .. ":" .. id, now) then
    return new_id, nil
  end
  redis.call("HDEL", key, "x.letter." .. number)
  return id, membership
end

--- Let in a job that comes back, here or from another slot.
function replays.insert(source, job, data, opts, now)
  arrivals.insert(source, job, data, opts, now)
  source.count = source.count + 1
end

--- Put a job that comes back where it belongs; `transit` is its letter, if that was in this queue.
local function send(base, job, data, opts, membership, sources, transit, now)
  if not parcels.isAway(base) then
    replays.insert(sourceAt(sources, base), job, data, opts, now)
  elseif membership then
    remotes.add(base, job, data, opts, remotes.ownerOf(membership))
  else
    parcels.send(base, transit or job.id, { verb = "insert", job = job, data = data, opts = opts }, transit)
  end
end

--- Bring back the job of a letter of which the hash says `known`. Returns its id.
local function bringBack(known, id, new_id, how, sources, transit, now)
  local letter = { id = id, at = tonumber(known.timestamp) or 0, note = letters.readNote(known["x.letter"]) or {} }
  local note, raw = letter.note, known["x.data"]
  local first = replays.firstData(known.data, note, raw, known["x.wrapped"])
  local quoted_id, at = firstLife(known.data, note)
  letter.quoted_id = quoted_id

  local base, membership = how.prefix .. ":" .. how.source, nil
  local member = known["x.member"]
  if member and not parcels.isAway(member) then new_id, membership = joinGroup(member, base, new_id, now) end
  local changes = how.changes or {}
  local job = { id = new_id, group = membership, name = known.name,
    priority = changes.lane and 0 or changes.priority or how.priority or note.priority or 0,
    delay = changes.delay or how.keep_delay and (how.delay or note.delay) or 0,
    run_at = changes.run_at, lifo = changes.lifo,
    lane = changes.lane or note.lane, order_ms = changes.order_ms or tonumber(note.order_ms or at) }
  local opts = changedOpts(how.opts or nextOpts(note, quoted_id, at), changes)
  job.had_delay = string.find(opts, '"delay":', 1, true) ~= nil
  job.more = { "x.replays", clock.digits((tonumber(known["x.replays"]) or 0) + 1),
    "x.history", historyWith(known["x.history"], letter, how, now) }
  local original = known["x.original"] or (how.is_repaired and not raw and first)
  if original then
    job.more[5], job.more[6] = "x.original", original
  end
  send(base, job, how.data or first, opts, membership, sources, transit, now)
  return new_id
end

local MOST_LOGS = 1000

--- The caller ends with replays.wakeSources(sources). If the group of its job is in another slot, the
--- letter goes there: the group decides.
function replays.replay(dead_letters, id, new_id, how, sources, now)
  local key = dead_letters.base .. ":" .. id
  local known = hashes.read(key, "name", "data", "timestamp", "x.letter", "x.data",
    "x.wrapped", "x.replays", "x.history", "x.original", "x.member")
  if not how.data and not replays.firstData(known.data, letters.readNote(known["x.letter"]),
      known["x.data"], known["x.wrapped"]) then
    return nil
  end
  local member = known["x.member"]
  local owner = member and parcels.isAway(member) and remotes.ownerOf(member)
  if owner then
    parcels.send(owner, id, { verb = "rejoin", queue = dead_letters.base, id = id, letter = known,
      logs = redis.call("LRANGE", key .. ":logs", -MOST_LOGS, -1), new_id = new_id, how = how }, id) -- bounded: MOST_LOGS
  else
    new_id = bringBack(known, id, new_id, how, sources, id, now)
  end
  jobs.delete(key)
  return new_id
end

--- The id that the job of a letter gets in its group, which is in this slot, in the queue at `base`;
--- nothing if its group does not take it.
function replays.idInGroup(membership, base, new_id)
  local key, kind, number = string.match(membership, "^(.*):(%a)(%d+)$")
  if not key or letters.isBarred(membership) then return nil end
  if kind ~= "c" then return (stages.oldId(key, number, base)) end
  return groups.findCompensation(key, number) and new_id .. "-c" .. number
end

--- A letter came from another slot to the group of its job. If the group does not take it, it goes back,
--- unless it is forced: then it runs outside the group.
function replays.receive(body, now)
  local known, how, sources = body.letter, body.how, {}
  local base = how.prefix .. ":" .. how.source
  if how.force or replays.idInGroup(known["x.member"], base, body.new_id) then
    bringBack(known, body.id, body.new_id, how, sources, nil, now)
    replays.wakeSources(sources)
    return
  end
  local more = {}
  for _, name in ipairs({ "x.letter", "x.data", "x.wrapped", "x.replays", "x.history", "x.original", "x.member" }) do
    if known[name] then more[#more + 1], more[#more + 2] = name, known[name] end
  end
  parcels.send(body.queue, body.id, { verb = "bury", id = body.id, letter = { name = known.name, more = more,
    text = known.data, stamp = known.timestamp, logs = body.logs } })
end
