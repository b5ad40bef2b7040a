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

-- Refuse a turn that is not current. If the room does not know its worker (a turn id is `<worker>/…`), state was lost
-- or the worker was taken for dead: it shows what it holds first, and asks again.
local function refuse_turn(room, turn)
  local worker = string.match(turn, '^([^/]+)/')
  if worker and not redis.call('ZSCORE', room.prefix .. 'workers', worker) then
    return redis.error_reply('UNKNOWNWORKER')
  end
  return redis.error_reply('LOST the turn is not current any more')
end
