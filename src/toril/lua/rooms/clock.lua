--- The server's time in ms. Clients' clocks differ; this one decides what is due. A test that turns
--- the clock forward says by how much in every call (`toril.testing`).
function clock.now()
  if not memory.now then
    local time = redis.call("TIME")
    memory.micros = time[2]
    local stamp = time[1] .. string.sub("00000" .. time[2], -6, -4)
    memory.now = tonumber(stamp) + memory.skew_ms
    if memory.skew_ms == 0 then
      -- Most calls write it: its digits are at hand, and formatting it costs as much as a command.
      memory.stamped_ms, memory.stamp = memory.now, stamp
    end
  end
  return memory.now
end

--- Three digits of microseconds: no two calls of a server begin in the same one, so together with the
--- milliseconds they order what several calls write.
function clock.micros()
  clock.now()
  return string.sub("00" .. memory.micros, -3)
end

--- A time as text. The server formats every number that a script passes it with seventeen digits,
--- which costs more than many commands; the same time is formatted only once.
function clock.stamp(ms)
  if ms ~= memory.stamped_ms then
    memory.stamped_ms, memory.stamp = ms, string.format("%.0f", ms)
  end
  return memory.stamp
end

--- A small count as text.
function clock.digits(count)
  if count == 0 then return "0" end
  return count == 1 and "1" or string.format("%.0f", count)
end
