--- What stands around the rooms and the calls.

--- What one call remembers while it runs, and the next one finds empty: nothing else outlives the
--- function that made it.
local memory

--- A call as the server runs it: with its arguments unpacked, and nothing remembered.
local function serve(call)
  return function(KEYS, ARGV)
    local a = cmsgpack.unpack(ARGV[1])
    memory = { lanes = {}, skew_ms = a.skew_ms or 0 }
    return call(KEYS, a, ARGV)
  end
end
