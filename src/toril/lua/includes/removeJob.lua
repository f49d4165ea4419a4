--- @lazily
--- @include "includes/groups"
--- @include "includes/openEnd"
--- Remove a job that is in no container any more: from its parent, its deduplication id, its
--- group, its keys.
--- Whatever removes a job that has not just finished passes here. `how` may say:
---   is_hard             no event tells; a parent of the same queue that waited for this child alone
---                       goes with it, as in BullMQ's drain and clean
---   keeps_deduplication a retention: the time to live of the id goes on
---   was_active          it was in `active`: nobody will be told how it ends
--- Returns whether there was such a job.
local function removeJob(queue, id, how)
  local job = queue.base .. ":" .. id
  local known = redis.call("HMGET", job, "name", "parentKey", "parent", "deid", "x.group", "ats",
    "x.lane", "x.lost", "defa")
  if known[4] and not (how and how.keeps_deduplication) then
    forgetDeduplication(queue, id, known[4])
  end
  if known[7] and not (how and how.keeps_deduplication) then
    leaveLane(queue, known[7], id)
  end
  deleteJob(job)
  if known[5] then
    groupOnSettled(known[5], job, "cancelled",
      { id = id, value = "removed", started = known[6] ~= false,
        is_open = how and how.was_active or isOpenEnd(known[6], known[8], known[9]) }, clock())
  end
  local parent_key, parent_json = known[2], known[3]
  if not parent_key or not parent_json then return known[1] ~= false end
  if not (how and how.is_hard) then
    unlinkFromParent(job, parent_key, parent_json)
    return true
  end
  if redis.call("SREM", parent_key .. ":dependencies", job) == 1 then
    local parent = parentOf(parent_key, parent_json)
    if hasNoChildrenLeft(parent) then
      if parent.queue.base ~= queue.base then
        releaseParentPlainly(parent, true)
      elseif redis.call("ZREM", queue.waiting_children, parent.id) == 1 then
        removeJob(queue, parent.id, how)
      end
    end
  end
  return true
end

--- The same for one job of many: what it holds must not keep the others from going.
local function removeAnyJob(queue, id, how)
  local is_removed, was_there = pcall(removeJob, queue, id, how)
  if is_removed then return was_there end
  deleteJob(queue.base .. ":" .. id)
  return true
end
