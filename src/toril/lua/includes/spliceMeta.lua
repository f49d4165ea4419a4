--- Put `meta` into the text of a job's data, without decoding it: a decoder would change it.
--- An object gets one more member at its end; anything else is wrapped in an object.
--- Returns the new text and the cut, "from:to:again:length": the first data is again what stands
--- from `from` to `to`, and from `again` on, as long as the text has this length.

local function isSpace(byte)
  return byte == 32 or byte == 10 or byte == 13 or byte == 9
end

--- Where the closing brace of an object is; nothing for a text that is no object.
local function closingBrace(text)
  if not string.find(text, "^[ \n\r\t]*{") then return nil end
  local last = #text
  while isSpace(string.byte(text, last)) do
    last = last - 1
  end
  return string.byte(text, last) == 125 and last or nil
end

local function spliceMeta(data, meta)
  local brace = closingBrace(data)
  local member = '"_dlqMeta":' .. meta
  if not brace then
    local head = '{"_dlqData":'
    local text = head .. data .. "," .. member .. "}"
    return text, string.format("%d:%d:%d:%d", #head + 1, #head + #data, #text + 1, #text)
  end
  if not string.find(data, "^[ \n\r\t]*{[ \n\r\t]*}") then
    member = "," .. member
  end
  local text = string.sub(data, 1, brace - 1) .. member .. string.sub(data, brace)
  return text, string.format("%d:%d:%d:%d", 1, brace - 1, brace + #member, #text)
end

--- The data as it was before spliceMeta; nothing when somebody has changed the text since.
local function unsplice(text, cut)
  local from, to, again, length = string.match(cut or "", "^(%d+):(%d+):(%d+):(%d+)$")
  if not from or #text ~= tonumber(length) then return nil end
  local mark = string.sub(text, to + 1, to + 12)
  if mark ~= ',"_dlqMeta":' and string.sub(mark, 1, 11) ~= '"_dlqMeta":' then return nil end
  return string.sub(text, tonumber(from), tonumber(to)) .. string.sub(text, tonumber(again))
end
