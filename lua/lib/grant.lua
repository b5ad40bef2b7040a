-- include: lib/count_turn
-- include: lib/drop
-- include: lib/remember_message
-- include: lib/take
-- include: lib/tick

-- Give a turn its lease: on the copy that is there (`hit`), or to build one, for which the old copy goes. `asked`:
-- worker turn signature key lease floor remember, as in begin. Its fence.
local function grant(room, session, record, asked, hit, mine)
  local prefix, worker, fence = room.prefix, asked.worker, next_tick(room, asked.floor)
  if not hit and record.worker then
    local reason = record.signature ~= asked.signature and 'signature' or mine and 'lost' or 'moved'
    drop_copy(room, session, record, 'soft', reason)
    if reason == 'moved' then redis.call('HINCRBY', prefix .. 'counters', 'moves', 1) end
  end
  take_leases(room, session, asked.key, room.ms + asked.lease)
  count_turn(room, worker, 1, hit and 'live' or 'building')
  remember_message(room, session, asked.turn, asked.remember)
  local name = prefix .. 'session:' .. session
  local since = string.format('%.0f', room.ms)
  if hit then
    redis.call('HSET', name, 'turn', asked.turn, 'fence', fence, 'lease', asked.lease, 'since', since)
    redis.call('ZREM', prefix .. 'activity', session)
    redis.call('HINCRBY', prefix .. 'counters', 'hits', 1)
  else
    redis.call('HSET', name, 'worker', worker, 'signature', asked.signature, 'generation', fence, 'state', 'building',
      'turn', asked.turn, 'fence', fence, 'lease', asked.lease, 'since', since)
  end
  if asked.key then redis.call('HSET', name, 'key', asked.key) end
  return fence
end
