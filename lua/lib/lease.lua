-- include: lib/left

-- Milliseconds the session's own turn still has; 0: it has none, or its lease ran out.
local function lease_left(room, session, record)
  if not record.turn then return 0 end
  return time_left(room, redis.call('ZSCORE', room.prefix .. 'leases', session), record.lease)
end
