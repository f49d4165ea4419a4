--- What was noted of a dead letter when it was written: { size (of the metadata), source, why, fp, opts
--- (unless they are the default), key (its idempotency key, if it chose one; false if it never ran),
--- priority, delay, lane, order_ms (the last four if it has them) }. Nothing for one that another
--- program wrote.
local function readNote(text)
  if not text then return nil end
  local is_read, note = pcall(cjson.decode, text)
  return is_read and type(note) == "table" and note.source and note or nil
end
