--- A text as JSON: quoted, with everything escaped that JSON does not allow inside quotes.
local short_escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function jsonText(text)
  if not string.find(text, '[%z\1-\31"\\]') then return '"' .. text .. '"' end
  local escaped = string.gsub(text, '[%z\1-\31"\\]', function(character)
    return short_escapes[character] or string.format("\\u%04x", string.byte(character))
  end)
  return '"' .. escaped .. '"'
end
