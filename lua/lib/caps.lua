-- include: lib/batch
-- include: lib/drop
-- include: lib/journal
-- include: lib/record

-- Hold an index (`lru`, `held:<worker>`) to its cap by the excess window (B22): only the oldest `excess` entries
-- are candidates; one that is mid-turn is skipped and not replaced by a newer one.
-- Looks at 512 candidates from `from` on, and drops `most` of them, at most. Returns how many were dropped, how far
-- over the cap the index stays because of turns (told once an episode, else 0), and where to go on, if there is more.
local function enforce_cap(room, index, cap, from, most)
  local key, over = room.prefix .. index, room.prefix .. 'over'
  local excess = cap and redis.call('ZCARD', key) - cap or 0
  if excess <= 0 then
    if cap then redis.call('HDEL', over, index) end
    return 0, 0, nil
  end
  local dropped, at = 0, from
  while at < excess - dropped and at < from + 512 and dropped < most do
    local window = redis.call('ZRANGE', key, at, math.min(at + BATCH, excess - dropped) - 1)
    if #window == 0 then break end
    local leases = redis.call('ZMSCORE', room.prefix .. 'leases', unpack(window))
    for i, session in ipairs(window) do
      local held = leases[i] and tonumber(leases[i]) > room.ms
      if held and redis.call('HEXISTS', room.prefix .. 'session:' .. session, 'turn') == 1 then
        at = at + 1
      elseif dropped < most then
        local record = read_record(room, session)
        drop_copy(room, session, record, 'soft', record.turn and 'lost' or 'lru')
        redis.call('ZREM', key, session) -- also where there was no record of it
        dropped = dropped + 1
      else
        break
      end
    end
  end
  if at < excess - dropped then return dropped, 0, at end
  local beyond = redis.call('ZCARD', key) - cap
  if beyond <= 0 then
    redis.call('HDEL', over, index)
    return dropped, 0, nil
  end
  if redis.call('HSETNX', over, index, beyond) == 0 then return dropped, 0, nil end
  redis.call('HINCRBY', room.prefix .. 'counters', 'over_cap', 1)
  note(room, 'over-cap', 'index', index, 'over', beyond, 'cap', cap, 'why', 'mid-turn')
  return dropped, beyond, nil
end
