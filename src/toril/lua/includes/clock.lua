--- The server's time in ms. Clients' clocks differ; this one decides what is due.
local function clock()
  local time = redis.call("TIME")
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
