--- @lazily for letters
--- @include "includes/deadLetter"

--- What finishJob does for a job that goes to the dead letters, cheaper, for most of them: those
--- without ties to others, with nothing beside their hash, and with data that are a plain object.
--- Returns its id there, or a refusal; nothing, and has changed nothing, for any other.
---
--- In a storm of failures each call within a script counts, and each text that is made. So what cannot
--- have changed since the worker took the job is not read again, the letter is put together in one
--- piece, and all of this is written out here.
local function buryPlainly(queue, dead_letters, batch, i, outcome, trouble, points, now)
  if outcome.is_special or dead_letters.has_more then return nil end
  local call, job = redis.call, batch.jobs[i]
  local hash = call("HMGET", job, "data", "parentKey")
  local data = hash[1]
  if not data or hash[2] or string.sub(data, -1) ~= "}" then return nil end
  local brace, quote = string.byte(data, 1, 2)
  if brace ~= 123 or quote ~= 34 then return nil end
  local refusal = leaveInBatch(queue, batch, i, outcome)
  if refusal then return refusal end

  local id, reason, moved = outcome.id, trouble.reason, dead_letters.moved
  local text = string.sub(data, 1, -2) .. ',"_dlqMeta":{"originalJobId":"' .. id
    .. '","originalTimestamp":' .. outcome.at .. trouble.plain_end
  local size = #text - #data - 12
  if size ~= trouble.noted_size then writeNote(trouble, size) end
  local letter_id = drawLetterId(dead_letters)
  call("HSET", dead_letters.prefix .. letter_id, "name", trouble.name, "data", text,
    "opts", '{"attempts":0}', "timestamp", dead_letters.stamp, "delay", "0", "priority", "0",
    "x.letter", trouble.noted)
  moved[#moved + 1] = job

  local events = queue.events
  call("XADD", dead_letters.queue.events, "*", "event", "waiting", "jobId", letter_id)
  call("XADD", events, "*", "event", "failed", "jobId", id, "failedReason", reason, "prev", "active")
  if trouble.made >= trouble.attempts then
    call("XADD", events, "*", "event", "retries-exhausted", "jobId", id,
      "attemptsMade", digits(trouble.made))
  end
  call("XADD", events, "*", "event", "deadLettered", "jobId", id, "queue", dead_letters.source,
    "deadLetterQueue", dead_letters.name, "failedReason", reason, "deadLetterJobId", letter_id)
  if points then
    countFinish(queue, "failed", points, now)
    countFinish(queue, "deadLettered", points, now)
  end
  return letter_id
end
