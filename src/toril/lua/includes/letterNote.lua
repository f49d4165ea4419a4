--- What was noted of a dead letter when it was written: { source, job, why, fp, opts, size, priority,
--- delay, lane, order_ms }, the last four if it has them. Nothing for one that another program wrote.
local function readNote(text)
  if not text then return nil end
  local is_read, note = pcall(cjson.decode, text)
  return is_read and type(note) == "table" and note.source and note or nil
end
