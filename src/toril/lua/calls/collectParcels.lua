--[[
  collectParcels: forget the parcels that their target has received, and set aside those it refused.

  Keys      base, parcels, parcels_due, in_transit, refused
  Args      done list of str (ids), refused list of {id, words}
  Returns   nothing
  Flags     allow-oom
  Cost      O(done + refused)
]]
function calls.collectParcels(KEYS, a, ARGV)
  local base, parcels_, parcels_due, in_transit, refused = unpack(KEYS)
  parcels.forget(base, a.done)
  for _, one in ipairs(a.refused) do
    parcels.refuse(base, one.id, one.words)
  end
end
