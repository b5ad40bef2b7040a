-- include: lib/drop
-- include: lib/lease
-- include: lib/record

-- Whose turn holds a key: the session, its record and the milliseconds left; or nil when the key is free. A lease that
-- ran out without its end dooms its copy (rule 4): it is dropped here, the key is free, and the second value is true.
local function lease_on(room, key)
  local leases, aliases = room.prefix .. 'leases', room.prefix .. 'aliases'
  if not redis.call('ZSCORE', leases, key) then return nil end
  local session, record = key, read_record(room, key)
  if not record.turn then
    session = redis.call('HGET', aliases, key)
    record = session and read_record(room, session) or {}
  end
  local left = lease_left(room, session, record)
  if left > 0 then return session, record, left end
  if record.turn then
    drop_copy(room, session, record, 'soft', 'lost')
    return nil, true
  end
  redis.call('ZREM', leases, key)
  redis.call('HDEL', aliases, key)
  return nil
end
