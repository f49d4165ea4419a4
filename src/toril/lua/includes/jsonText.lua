--- A text as JSON: quoted, with everything escaped that JSON does not allow inside quotes.
local short_escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function jsonText(text)
  local escaped = string.gsub(text, '[%z\1-\31"\\]', function(character)
    return short_escapes[character] or string.format("\\u%04x", string.byte(character))
  end)
  return '"' .. escaped .. '"'
end
