--- When each attempt of a job began and ended, and which worker made it. The last one is recorded in
--- `ats`, `processedOn`, `pb` and `x.ended` (its number and its end). When the next one begins, it becomes
--- a line of `x.attempts`: [number, began, ended, worker] as JSON. Both are written by commands that
--- write something else anyway, so an attempt costs no extra command.

--- The oldest lines go when there are more bytes than this.
local MOST_BYTES = 2000
local MOST_OF_A_NAME = 60

--- The new `x.ended` for the attempt that ends now.
function tries.ended(number, now)
  return (number or "0") .. ":" .. clock.stamp(now)
end

local function endOf(last)
  local number, ended = string.match(last["x.ended"] or "", "^(%d+):(%d+)$")
  if ended and number == last.ats then return ended end
  return string.match(last.finishedOn or "", "^%d+$") or "null"
end

--- The new `x.attempts` once the last attempt is over; nothing if that attempt left no trace.
--- `last` = the fields of the job: ats, processedOn, pb, finishedOn, x.ended, x.attempts.
function tries.past(last)
  local number = string.match(last.ats or "", "^%d+$")
  local began = string.match(last.processedOn or "", "^%d+$")
  if not number or not began then return nil end
  local worker = last.pb and last.pb ~= "" and cjson.encode(string.sub(last.pb, 1, MOST_OF_A_NAME))
  local line = "[" .. number .. "," .. began .. "," .. endOf(last) .. "," .. (worker or "null") .. "]"
  if not last["x.attempts"] then return line end
  local text = last["x.attempts"] .. "\n" .. line
  if #text <= MOST_BYTES then return text end
  return string.sub(text, string.find(text, "\n", #text - MOST_BYTES, true) + 1)
end

--- The same for a hash as HGETALL returns it, and who made the last attempt.
function tries.pastOf(hash)
  local last = {}
  for i = 1, #hash, 2 do last[hash[i]] = hash[i + 1] end
  return tries.past(last), last.pb
end
