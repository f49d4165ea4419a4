--[[
  deliverParcels: do what calls in another slot left to be done here, each parcel once.

  Keys      base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, failed,
            marker, meta, id, events, received
  Args      ids list of str
            After the map, raw, for each parcel: its body.
  Returns   for each parcel: 0 delivered, now or earlier; 1 not yet; or the reason why it is refused
            forever
  Emits     waiting, cleaned
  Keeps     I1
  Cost      O(parcels)
]]
function calls.deliverParcels(KEYS, a, ARGV)
  local base, wait, paused, active, prioritized, pc, delayed, waiting_children, completed, failed, marker, meta, id, events, received = unpack(KEYS)
  local bodies = {}
  for i = 1, #a.ids do bodies[i] = ARGV[i + 1] end
  return deliveries.receive(queues.at(base), a.ids, bodies, clock.now())
end
