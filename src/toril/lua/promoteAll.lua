#!lua flags=allow-oom
--[[
  promoteAll: let delayed jobs run now, a slice at a time, the first due first.

  Keys      base, wait, paused, active, prioritized, pc, delayed, marker, meta, events
  Args      slice int
  Returns   how many were let in, how many are left
  Emits     waiting
  Keeps     I1
  Cost      O(slice)
]]
local base, wait, paused, active, prioritized, pc, delayed, marker, meta, events = unpack(KEYS)
local a = cmsgpack.unpack(ARGV[1])
--- @include "includes/queueAt"
--- @include "includes/gate"
--- @include "includes/emit"
--- @include "includes/place"
--- @include "includes/lanes"
--- @include "includes/promoteJob"

local queue = queueAt(base)
local gate = readGate(queue)
local ids = redis.call("ZRANGE", delayed, 0, a.slice - 1)
local count = 0
for _, id in ipairs(ids) do
  if promoteJob(queue, gate, id) then count = count + 1 end
end
if #ids > 0 then redis.call("ZREM", delayed, unpack(ids)) end
local room = a.slice - #ids
local members = room > 0 and redis.call("ZRANGE", queue["lanes:delayed"], 0, room - 1) or {}
if #members > 0 then takeFromAside(queue, unpack(members)) end
for _, member in ipairs(members) do
  local _, mark, lane, id = readLaneMember(member)
  if id ~= "" then
    promoteInLane(queue, gate, lane, id, mark)
    count = count + 1
  end
end
if #ids + #members > 0 then wake(queue, gate) end
return { count, redis.call("ZCARD", delayed) + redis.call("ZCARD", queue["lanes:delayed"]) }
