--- How a job names its lane. Its field `x.lane` is its place (16 digits of order, 16 of arrival), then
--- the lane. Its member in the sorted sets is lane, space, mark, place, id; the mark "-" stands for a
--- job that has already started and goes before all others. Lanes are written without spaces.

laneNames.STARTED, laneNames.PLAIN = "-", "0"

--- A lane as it is written in keys: without spaces and control characters.
function laneNames.write(text)
  return (string.gsub(text, "[%%%c ]", function(character)
    return string.format("%%%02x", string.byte(character))
  end))
end

--- Where the lane's name ends in a member of `lanes:waiting` or `lanes:delayed`.
local function spaceIn(member)
  return string.find(member, " ", 1, true) or #member + 1
end

--- The id in such a member; "" if somebody else wrote it, since no job has that id.
function laneNames.idIn(member)
  return string.sub(member, spaceIn(member) + 34)
end

function laneNames.laneOf(field)
  return string.sub(field, 33)
end

function laneNames.member(field, id, mark)
  return string.sub(field, 33) .. " " .. mark .. string.sub(field, 1, 32) .. id
end

--- The field `x.lane` and the id that a member of a known lane stands for.
function laneNames.readHead(member, lane)
  local place = #lane + 3 -- behind the space and the mark
  return string.sub(member, place, place + 31) .. lane, string.sub(member, place + 32)
end

--- The lane, the mark, the field `x.lane` and the id that a member stands for, which is "" if somebody
--- else wrote it.
function laneNames.readMember(member)
  local space = spaceIn(member)
  local lane = string.sub(member, 1, space - 1)
  return lane, string.sub(member, space + 1, space + 1), laneNames.readHead(member, lane)
end
