-- Evict a session's copy: at once, or, while a turn holds it, at that turn's end (rule 11). Hard beats soft.
-- include: lib/drop
-- include: lib/free_first
-- include: lib/lease
local function evict_copy(room, session, record, mode, reason)
  if lease_left(room, session, record) == 0 then
    drop_copy(room, session, record, mode, reason)
    return 'evicted'
  end
  if not record.evict or mode == 'hard' then
    free_first(room)
    redis.call('HSET', room.prefix .. 'session:' .. session, 'evict', mode .. ' ' .. reason)
  end
  return 'marked'
end
