--[[
  addFlow: add whole trees of jobs, across any number of queues, all or nothing.

  Parents come before their children in the list of nodes. A node that already exists, or is kept out
  by its deduplication id, stays as it is, and what is below it is not added. A parent whose children
  turn out to be done is released at the end, when the whole tree has been added.

  What belongs to another slot is sent there (rooms/flows.lua) and counts as added.

  Keys      base, wait, meta, events
  Args      queues list of str (the qualified names), nodes list of {queue, above, id, name,
            delay, run_at, priority, lifo, timestamp, parent_key, parent, de, lane, order_ms, ordering_delay,
            max_lane_size, has_children, once},
            flight str?, request str?, is_late bool? (rooms/requests.lua)
            Both `queue` and `above` (the parent's position) count from 1. A root with `once`
            ({key, ms}) is added at most once in that time, with everything below it (calls/add.lua).
            After the map, raw, for each node: its data, its options as JSON.
  Returns   now ms, then for each node: 0 added, 1 the id exists, 2 left out with what is above
            it, or the id of the job that owns its deduplication id; or one refusal for all:
            the code and the node's position
  Refuses   NO_PARENT           the parent of a root does not exist   ParentNotFoundError
            OTHER_PARENT        a job that exists has another parent   ParentConflictError
            LANE_FULL           a lane would hold more than max_lane_size jobs   LaneFullError
  Emits     added, waiting, delayed, waiting-children, duplicated, deduplicated
  Keeps     I1, I4
  Cost      O(nodes)
]]
function calls.addFlow(KEYS, a, ARGV)
  local base, wait, meta, events = unpack(KEYS)
  local now, homes = clock.now(), flows.homes(a.queues)
  return requests.makeOnce(queues.at(base), a, now,
    function() return flows.add(homes, a.nodes, ARGV, 1, now) end,
    function(at) return requests.allAdded(at, #a.nodes) end)
end
