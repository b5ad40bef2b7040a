-- include: lib/drop
-- include: lib/lease
-- include: lib/record

-- The record of a turn that commits or ends, if the turn is still entitled to: it is the one in the record and its
-- lease lives. One whose lease ran out is refused even if nobody took over, and its copy is dropped (rule 4).
local function current_turn(room, session, turn)
  local record = read_record(room, session)
  if record.turn ~= turn then return nil end
  if lease_left(room, session, record) > 0 then return record end
  drop_copy(room, session, record, 'soft', 'lost')
  return nil
end
