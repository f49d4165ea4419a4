--- The frame around the rooms and the calls.

--- What Lua and the server provide, as locals: any other name costs two table lookups each time it is
--- used. None of it is available while the library is being loaded, so the first call looks it up.
local function given()
  return redis, cjson, cmsgpack, string, table, math, unpack, ipairs, pairs, next, type, tonumber,
    tostring, pcall, error, rawget, setmetatable
end
local register = redis.register_function
local redis, cjson, cmsgpack, string, table, math, unpack, ipairs, pairs, next, type, tonumber,
  tostring, pcall, error, rawget, setmetatable

--- What a call remembers while it runs. The next call starts with it empty; nothing else outlives the
--- function that created it.
local memory

--- A call as the server runs it: with its arguments unpacked and an empty memory. On a cluster
--- (`spread`) a call may leave parcels for other slots at its first key; its reply then says so, and
--- brings them if its caller `carries` them. It may also name parcels that were `delivered`.
local function serve(call)
  return function(KEYS, ARGV)
    if not redis then
      redis, cjson, cmsgpack, string, table, math, unpack, ipairs, pairs, next, type, tonumber,
        tostring, pcall, error, rawget, setmetatable = given()
    end
    local a = cmsgpack.unpack(ARGV[1])
    memory = { skew_ms = a.skew_ms or 0, outbox = a.spread and KEYS[1], carries = a.carries, now = false,
      micros = false, stamped_ms = false, stamp = false, lanes = false }
    -- If they cannot be forgotten they are delivered again; the call itself has to be made.
    if a.delivered then pcall(parcels.forget, KEYS[1], a.delivered) end
    local is_done, reply = pcall(call, KEYS, a, ARGV)
    -- Also if it failed half-way: what it has written is there.
    if memory.lanes then lanes.wake() end
    if not is_done then error(reply, 0) end
    if memory.has_parcels then return parcels.tellWith(reply) end
    return reply
  end
end
