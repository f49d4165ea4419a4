--- A text as JSON: quoted, with everything escaped that JSON does not allow inside quotes.
local short_escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

function texts.quote(text)
  if not string.find(text, '[%z\1-\31"\\]') then return '"' .. text .. '"' end
  local escaped = string.gsub(text, '[%z\1-\31"\\]', function(character)
    return short_escapes[character] or string.format("\\u%04x", string.byte(character))
  end)
  return '"' .. escaped .. '"'
end

--- Put metadata into the text of a job's data, without decoding it: a decoder would change it.
--- An object gets one more member at its end; anything else is wrapped in an object.

local function isSpace(byte)
  return byte == 32 or byte == 10 or byte == 13 or byte == 9
end

--- Where the closing brace of an object is; nothing if the text is not an object.
local function closingBrace(text)
  local last = #text
  if string.byte(text) ~= 123 and not string.find(text, "^[ \n\r\t]*{") then return nil end
  while isSpace(string.byte(text, last)) do
    last = last - 1
  end
  return string.byte(text, last) == 125 and last or nil
end

--- Returns the new text and whether the data were wrapped. It is built in one piece: the server looks
--- at every byte of each string that a script builds.
function texts.splice(data, metadata)
  local brace = closingBrace(data)
  if not brace then
    return '{"_dlqData":' .. data .. ',"_dlqMeta":' .. metadata .. "}", true
  end
  -- In most objects the first name follows the brace.
  local is_empty = string.byte(data, 2) ~= 34 and string.find(data, "^[ \n\r\t]*{[ \n\r\t]*}")
  return string.sub(data, 1, brace - 1) .. (is_empty and '"_dlqMeta":' or ',"_dlqMeta":')
    .. metadata .. string.sub(data, brace), false
end

--- An object with more members at its end: `members` is the text between its braces.
function texts.extend(data, members)
  local brace = closingBrace(data) or #data
  local is_empty = string.find(data, "^[ \n\r\t]*{[ \n\r\t]*}")
  return string.sub(data, 1, brace - 1) .. (is_empty and "" or ",") .. members .. string.sub(data, brace)
end

--- Where metadata of `size` bytes begin, and the brace after them; nothing if the text is too short for
--- them.
function texts.findMeta(text, size)
  local brace = size and closingBrace(text)
  if not brace or brace <= size then return nil end
  return brace - size, brace
end

--- The data as they were before texts.splice added metadata of `size` bytes; nothing if the metadata are
--- not where they were put: somebody has rewritten the text.
function texts.unsplice(text, size, is_wrapped)
  local from, brace = texts.findMeta(text, size)
  if not from then return nil end
  if string.sub(text, from - 11, from) ~= '"_dlqMeta":{' or string.byte(text, brace - 1) ~= 125 then
    return nil
  end
  local last = from - 12
  -- No object ends with a comma: if there is one, it came with the metadata.
  if string.byte(text, last) == 44 then last = last - 1 end
  if is_wrapped then
    return string.sub(text, 1, 12) == '{"_dlqData":' and string.sub(text, 13, last) or nil
  end
  return string.sub(text, 1, last) .. string.sub(text, brace)
end
