--[[
  offerParcels: let couriers carry again the parcels that their target refused.

  Keys      base, parcels, parcels_due, in_transit, refused
  Args      count int
  Returns   how many
  Cost      O(count)
]]
function calls.offerParcels(KEYS, a, ARGV)
  local base, parcels_, parcels_due, in_transit, refused = unpack(KEYS)
  return parcels.offerAgain(base, a.count, clock.now())
end
