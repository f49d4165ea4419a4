--[[
  fetchParcels: the parcels for queues in other slots that are due, for a courier to carry.

  A parcel that is fetched is postponed, so that another courier carries it if this one dies.

  Keys      base, parcels, parcels_due, in_transit, refused
  Args      count int, bytes int (of bodies in one slice; the first always comes),
            ahead_ms int? (also those due by then, which others may be carrying)
  Returns   list of id, target, body and whether a job is in transit (0 or 1), and whether there are more
            (0 or 1)
  Flags     allow-oom
  Cost      O(count)
]]
function calls.fetchParcels(KEYS, a, ARGV)
  local base, parcels_, parcels_due, in_transit, refused = unpack(KEYS)
  local now = clock.now()
  local found, has_more = parcels.fetch(base, a.count, a.bytes, now, now + (a.ahead_ms or 0))
  return { found, has_more and 1 or 0 }
end
