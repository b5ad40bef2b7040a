-- include: lib/bury
-- include: lib/free
-- include: lib/journal
-- include: lib/message
-- include: lib/order_ending

-- Drop a copy: the one place that does (rule 10). A turn still in the record is one whose lease ran out.
-- Hard beats soft: a hard eviction that was waiting for the turn's end is carried out whatever the reason is.
local function drop_copy(room, session, record, mode, reason)
  local prefix = room.prefix
  redis.call('DEL', prefix .. 'session:' .. session)
  if not record.worker then -- no copy, only remains of one: nothing to count, nobody to tell
    redis.call('ZREM', prefix .. 'lru', session)
    redis.call('ZREM', prefix .. 'activity', session)
    return mode
  end
  if record.evict and string.sub(record.evict, 1, 4) == 'hard' then mode = 'hard' end
  if record.turn then
    free_leases(room, session, record)
    redis.call('HINCRBY', prefix .. 'counters', 'lost', 1)
  end
  if record.state == 'live' then
    redis.call('ZREM', prefix .. 'lru', session)
    redis.call('ZREM', prefix .. 'held:' .. record.worker, session)
    redis.call('ZREM', prefix .. 'activity', session)
    if tonumber(redis.call('ZINCRBY', prefix .. 'signatures', -1, record.signature)) <= 0 then
      redis.call('ZREM', prefix .. 'signatures', record.signature)
    end
    redis.call('HINCRBY', prefix .. 'counters', 'evictions:' .. reason, 1)
  end
  if mode == 'hard' then order_ending(room, session, record.worker, record.generation) end
  bury(room, session, record.fence)
  local event = (reason == 'lost' or reason == 'moved') and reason or 'evicted'
  note(room, event, 'session', session, 'worker', record.worker, 'generation', record.generation,
    'mode', mode, 'reason', reason)
  send(room, record.worker, session, mode, 'generation', record.generation, reason)
  return mode
end
