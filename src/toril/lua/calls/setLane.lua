--[[
  setLane: change the settings of one lane or, without `lane`, of all of them.

  Only what is named changes. Pause, weight and halt apply to one lane only; to pause all, pause the queue.
  `recoverLanes`, which the caller runs next, finds the lanes that may run now because of the change.

  Keys      base, active, marker, meta, paused, lanes_settings
  Args      lane str?, set map of (concurrency, max, duration, weight), clear list of str,
            pause bool?, resume bool?
  Returns   1 if the lane was paused, halted or held back by a handler before, else 0
  Flags     allow-oom
  Cost      O(log lanes)
]]
local FIELDS = { concurrency = "toril.laneConcurrency", max = "toril.laneMax",
  duration = "toril.laneDuration" }

--- Note that several jobs could hold a lane, before or after this change. When fewer may again, lanes that
--- are full stay ready until `recoverLanes` gets to them, or a take, which looks because of this.
local function noteShared(meta, concurrency)
  local before = tonumber(redis.call("HGET", meta, FIELDS.concurrency) or nil) or 1
  if math.max(before, concurrency or 1) > 1 then redis.call("HSET", meta, "toril.lanesShared", 1) end
end

function calls.setLane(KEYS, a, ARGV)
  local base, active, marker, meta, paused, lanes_settings = unpack(KEYS)
  local queue = queues.at(base)
  if not a.lane then
    noteShared(meta, a.set.concurrency)
    for name, value in pairs(a.set) do
      redis.call("HSET", meta, FIELDS[name], value)
    end
    for _, name in ipairs(a.clear) do
      redis.call("HDEL", meta, FIELDS[name])
    end
    return 0
  end

  local lane = laneNames.write(a.lane)
  local settings = lanes.settings(queue, lane) or {}
  local was_stopped = settings.paused or settings.halted
  for name, value in pairs(a.set) do
    settings[name] = value
  end
  for _, name in ipairs(a.clear) do
    settings[name] = nil
  end
  if a.pause then
    settings.paused, settings.since = true, settings.since or clock.now()
  end
  if a.resume then
    settings.paused, settings.halted, settings.since = nil, nil, nil
    was_stopped = lanes.free(queue, lane) or was_stopped
  end
  lanes.saveSettings(queue, lane, settings)
  local turn, ids = lanes.holders(queue, lane)
  lanes.place(queue, lane, #ids, turn)
  return was_stopped and 1 or 0
end
