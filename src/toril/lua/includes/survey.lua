--- Count a letter in the group of its fingerprint: how many, since when, until when, and the newest
--- as an example.
local function addToGroup(groups, letter)
  local group = groups[letter.note.fp]
  if not group then
    group = { count = 0, first = letter.at, last = letter.at, example = letter.id }
    groups[letter.note.fp] = group
  end
  group.count = group.count + 1
  group.first = math.min(group.first, letter.at)
  if letter.at >= group.last then
    group.last, group.example = letter.at, letter.id
  end
end
