--- The server's time in ms. Clients' clocks differ; this one decides what is due. A test that turns
--- the clock forward says by how much in every call (`toril.testing`).
local function clock()
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000) + (a.skew_ms or 0)
end

--- A time as text. The server writes every number that a script hands it with seventeen digits,
--- which costs more than many a command; the same time is written once.
local stamped_ms, stamped_text
local function stamp(ms)
  if ms ~= stamped_ms then
    stamped_ms, stamped_text = ms, string.format("%.0f", ms)
  end
  return stamped_text
end

--- A small count as text.
local function digits(count)
  if count == 0 then return "0" end
  return count == 1 and "1" or string.format("%.0f", count)
end
