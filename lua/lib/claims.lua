-- include: lib/queue

-- A turn claims its session and, if it has one, its lease key (rule 9). Both stand in `leases`; `aliases`
-- says which session a lease key is held for.

-- Take or prolong a turn's claims. Not with XX: the caller has checked that the turn is entitled to them.
local function take_claims(room, session, key, expiry)
  local leases = room.prefix .. 'leases'
  expiry = string.format('%.0f', expiry)
  if key then
    redis.call('ZADD', leases, expiry, session, expiry, key)
    redis.call('HSET', room.prefix .. 'aliases', key, session)
  else
    redis.call('ZADD', leases, expiry, session)
  end
end

-- Give up a turn's claims and wake the next in line. Opens with a write that frees (rule 17).
local function free_claims(room, session, record)
  redis.call('ZREM', room.prefix .. 'leases', session)
  wake(room, session)
  if record.key then
    redis.call('ZREM', room.prefix .. 'leases', record.key)
    redis.call('HDEL', room.prefix .. 'aliases', record.key)
    wake(room, record.key)
  end
end
