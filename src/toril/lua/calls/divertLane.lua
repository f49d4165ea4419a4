--[[
  divertLane: send what waits in a lane behind a job that failed for good to the dead letters, in
  order, a slice at a time; then the lane continues.

  Jobs added since that failure stay, and so do the pending iterations of schedulers.

  Keys      base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, failed,
            marker, stalled, meta, id, events, repeat, lanes_waiting, lanes_diverting, dead_base,
            dead_wait, dead_paused, dead_active, dead_marker, dead_meta, dead_id, dead_events
  Args      lane str, source str (the name of this queue), dead_letters str (that of the other), away
            str? (the base of the other if it is in another slot: then it has no keys here), slice int, bytes int (of data in one slice), skip int (how many earlier calls kept)
  Returns   1 if there is more to do, else 0; how many were sent, how many were kept
  Emits     failed, deadLettered, waiting
  Keeps     I1
  Flags     allow-oom
  Cost      O(slice + skip)
]]
--- No worker has seen these jobs, so what it would write with their letters is written here.
local function troubleOf(a, reason)
  local source = texts.quote(a.source)
  return {
    metadata = ',"sourceQueue":' .. source .. ',"failedReason":' .. texts.quote(reason)
      .. ',"stacktrace":[],"errorType":"","fingerprint":"diverted","cause":"diverted"',
    note = ',"source":' .. source .. ',"why":' .. texts.quote(string.lower(reason))
      .. ',"fp":"diverted","key":false,"lane":' .. texts.quote(a.lane)
  }
end

--- `way` = { queue, gate, now, dead_letters, reason, trouble }.
local function divert(way, field, id)
  local key = way.queue.base .. ":" .. id
  local known = jobs.readEnding(key)
  if not known then return end
  local opts = redis.call("HGET", key, "opts")
  if not opts or string.sub(opts, 1, 1) ~= "{" then opts = "{}" end
  local trouble = {
    metadata = way.trouble.metadata .. ',"attemptsMade":' .. clock.digits(known.attempts_made)
      .. ',"originalOpts":' .. opts,
    note = way.trouble.note .. ',"opts":' .. texts.quote(opts) .. ',"order_ms":"'
      .. string.sub(field, 1, 16) .. '"'
  }
  jobs.finish(way.queue, way.gate, { id = id, state = "failed", value = way.reason,
    previous = "waiting", trouble = trouble, dead_letters = way.dead_letters }, known, nil, way.now)
end

--- Send what was waiting in the lane before the failure, as much as one call may; returns how many were
--- sent, how many stay, and whether there may be more.
local function divertMembers(way, lane, until_seq, a)
  local queue = way.queue
  local found = redis.call("ZRANGEBYLEX", queue["lanes:waiting"], "[" .. lane .. " ",
    "(" .. lane .. "!", "LIMIT", a.skip, a.slice)
  local sent, kept, bytes = 0, 0, 0
  for _, member in ipairs(found) do
    local _, _, field, id = laneNames.readMember(member)
    local is_newer = (tonumber(string.sub(field, 17, 32)) or math.huge) > until_seq
    if is_newer or schedules.isNextIteration(queue, id) then
      kept = kept + 1
    else
      bytes = bytes + (tonumber(redis.pcall("HSTRLEN", queue.base .. ":" .. id, "data")) or 0)
      if sent > 0 and bytes > a.bytes then return sent, kept, true end
      lanes.removeFromWaiting(queue, lane, member)
      lanes.dropKept(queue, id)
      local is_sound, problem = pcall(divert, way, field, id)
      if not is_sound then damage.abandon(queue, id, damage.of(queue, problem), way.now) end
      sent = sent + 1
    end
  end
  return sent, kept, #found == a.slice
end

--- The lane continues after the job that failed.
local function endDiversion(queue, lane, failed_id)
  redis.call("HDEL", queue["lanes:diverting"], lane)
  local settings = lanes.settings(queue, lane) or {}
  if settings.halted == failed_id then
    settings.halted = nil
    if not settings.paused then settings.since = nil end
    lanes.saveSettings(queue, lane, settings)
  end
  local turn, ids = lanes.holders(queue, lane)
  lanes.place(queue, lane, #ids, turn)
end

function calls.divertLane(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, failed, marker, stalled, meta, id, events, repeat_, lanes_waiting, lanes_diverting, dead_base, dead_wait, dead_paused, dead_active, dead_marker, dead_meta, dead_id, dead_events = unpack(KEYS)
  local queue, now, lane = queues.at(base), clock.now(), laneNames.write(a.lane)
  local gate = gates.read(queue)
  local cause = lanes.diversionOf(queue, lane)
  if not cause then return { 0, 0, 0 } end
  local reason = "its lane was diverted: job " .. cause.job .. " failed"
  local dead_letters = burials.open(dead_base or a.away, a.dead_letters, a.source, {}, true, {}, now)
  local way = { queue = queue, gate = gate, now = now, dead_letters = dead_letters, reason = reason,
    trouble = troubleOf(a, reason) }
  local sent, kept, is_cut = divertMembers(way, lane, cause.until_seq, a)
  burials.close(queue, dead_letters)
  if is_cut then return { 1, sent, kept } end
  endDiversion(queue, lane, cause.job)
  return { 0, sent, kept }
end
