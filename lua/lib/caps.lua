-- include: lib/drop
-- include: lib/journal
-- include: lib/lease
-- include: lib/record

-- Hold an index (`lru`, `held:<worker>`) to its cap by the excess window (B22): only the oldest `excess` entries
-- are candidates; one that is mid-turn is skipped and not replaced by a newer one.
-- Looks at `most` candidates from `offset` on. Returns how many were dropped, how far over the cap the index stays
-- because of turns (told once an episode, else 0), and the offset to go on from, if the window is longer.
local function enforce_cap(room, index, cap, offset, most)
  local key = room.prefix .. index
  local excess = cap and redis.call('ZCARD', key) - cap or 0
  if excess <= 0 then
    if cap then redis.call('HDEL', room.prefix .. 'over', index) end
    return 0, 0, nil
  end
  if most <= 0 then return 0, 0, offset end
  local last = math.min(excess, offset + most)
  local window = redis.call('ZRANGE', key, offset, last - 1)
  local dropped = 0
  for _, session in ipairs(window) do
    local record = read_record(room, session)
    if lease_left(room, session, record) == 0 then
      drop_copy(room, session, record, 'soft', record.turn and 'lost' or 'lru')
      redis.call('ZREM', key, session) -- also where there was no record of it
      dropped = dropped + 1
    end
  end
  if last < excess then return dropped, 0, last - dropped end
  local over = redis.call('ZCARD', key) - cap
  if over <= 0 then
    redis.call('HDEL', room.prefix .. 'over', index)
    return dropped, 0, nil
  end
  if redis.call('HSETNX', room.prefix .. 'over', index, over) == 0 then return dropped, 0, nil end
  redis.call('HINCRBY', room.prefix .. 'counters', 'over_cap', 1)
  note(room, 'over-cap', 'index', index, 'over', over, 'cap', cap, 'why', 'mid-turn')
  return dropped, over, nil
end
