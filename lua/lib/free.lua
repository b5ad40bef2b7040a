-- include: lib/count_turn
-- include: lib/queue

-- Give up a turn's claims and wake the next in line. Opens with a write that frees (rule 17).
local function free_leases(room, session, record)
  redis.call('ZREM', room.prefix .. 'leases', session)
  count_turn(room, record.worker, -1, record.state)
  wake(room, session)
  if record.key and redis.call('HGET', room.prefix .. 'aliases', record.key) == session then
    redis.call('ZREM', room.prefix .. 'leases', record.key)
    redis.call('HDEL', room.prefix .. 'aliases', record.key)
    wake(room, record.key)
  end
end
