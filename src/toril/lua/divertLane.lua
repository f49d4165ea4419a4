#!lua flags=allow-oom
--[[
  divertLane: send what waits in a lane behind a job that failed for good to the dead letters, in
  order, a slice at a time; then the lane goes on.

  What has been added since that failure stays, and so do the pending iterations of schedulers.

  Keys      base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, failed,
            marker, stalled, meta, id, events, repeat, lanes_waiting, lanes_diverting, dead_base,
            dead_wait, dead_paused, dead_active, dead_marker, dead_meta, dead_id, dead_events
  Args      lane str, source str (the name of this queue), dead_letters str (that of the other), slice
            int, bytes int (of data in one slice), skip int (how many were kept by the calls before)
  Returns   1 when there is more to do, else 0; how many were sent, how many were kept
  Emits     failed, deadLettered, waiting
  Keeps     I1
  Cost      O(slice + skip)
]]
local base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, failed, marker, stalled, meta, id, events, repeat_, lanes_waiting, lanes_diverting, dead_base, dead_wait, dead_paused, dead_active, dead_marker, dead_meta, dead_id, dead_events = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/clock"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/lanes"
--- @include "includes/deleteJob"
--- @include "includes/parents"
--- @include "includes/deduplication"
--- @include "includes/removeJob"
--- @include "includes/retain"
--- @include "includes/metrics"
--- @include "includes/scheduled"
--- @include "includes/finish"
--- @include "includes/damage"

local queue = queueAt(base)
local gate = readGate(queue)
local now = clock()
local lane = laneName(a.lane)
local told = redis.call("HGET", lanes_diverting, lane)
if not told then return { 0, 0, 0 } end
local cause = cjson.decode(told)
local members = redis.call("ZRANGEBYLEX", lanes_waiting, "[" .. lane .. " ", "(" .. lane .. "!",
  "LIMIT", a.skip, a.slice)
local dead_letters = openDeadLetters(dead_base, a.dead_letters, a.source, {}, true, {}, now)

local reason = "its lane was diverted: job " .. cause.job .. " failed"

--- No worker has seen these jobs: what it would write beside their letters is written here.
local metadata = ',"sourceQueue":' .. jsonText(a.source) .. ',"failedReason":'
  .. jsonText(reason) .. ',"stacktrace":[],"errorType":"","fingerprint":"diverted","cause":"diverted"'
local note = ',"source":' .. jsonText(a.source) .. ',"why":' .. jsonText(string.lower(reason))
  .. ',"fp":"diverted","key":false,"lane":' .. jsonText(a.lane)

local function divert(field, job_id)
  local key = base .. ":" .. job_id
  local known = readEnding(key)
  if not known then return end
  local opts = redis.call("HGET", key, "opts")
  if not opts or string.sub(opts, 1, 1) ~= "{" then opts = "{}" end
  local trouble = {
    metadata = metadata .. ',"attemptsMade":' .. digits(known.attempts_made) .. ',"originalOpts":' .. opts,
    note = note .. ',"opts":' .. jsonText(opts) .. ',"order_ms":"' .. string.sub(field, 1, 16) .. '"' }
  finishJob(queue, gate, { id = job_id, state = "failed", value = reason, previous = "waiting",
    trouble = trouble, dead_letters = dead_letters }, known, nil, now)
end

local sent, kept, bytes, is_cut = 0, 0, 0, #members == a.slice
for _, member in ipairs(members) do
  local _, _, field, job_id = readLaneMember(member)
  if (tonumber(string.sub(field, 17, 32)) or math.huge) <= cause.until_seq and not isNextIteration(queue, job_id) then
    bytes = bytes + (tonumber(redis.pcall("HSTRLEN", base .. ":" .. job_id, "data")) or 0)
    if sent > 0 and bytes > a.bytes then
      is_cut = true
      break
    end
    removeFromWaiting(queue, lane, member)
    dropKept(queue, job_id)
    local is_sound, problem = pcall(divert, field, job_id)
    if not is_sound then abandonJob(queue, job_id, damageOf(queue, problem), now) end
    sent = sent + 1
  else
    kept = kept + 1
  end
end
closeDeadLetters(queue, dead_letters)
if is_cut then return { 1, sent, kept } end

redis.call("HDEL", lanes_diverting, lane)
local settings = laneSettings(queue, lane) or {}
if settings.halted == cause.job then
  settings.halted = nil
  if not settings.paused then settings.since = nil end
  saveLaneSettings(queue, lane, settings)
end
local turn, ids = laneHolders(queue, lane)
placeLane(queue, lane, #ids, turn)
wakeForLanes(queue, gate)
return { 0, sent, kept }
