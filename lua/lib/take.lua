-- Take or prolong a turn's claims: on its session and, if it has one, on its lease key (rule 9). Both stand in
-- `leases`; `aliases` says which session a lease key is held for. The caller has checked that the turn is entitled.
local function take_leases(room, session, key, expiry)
  local leases = room.prefix .. 'leases'
  expiry = string.format('%.0f', expiry)
  if key then
    redis.call('ZADD', leases, expiry, session, expiry, key)
    redis.call('HSET', room.prefix .. 'aliases', key, session)
  else
    redis.call('ZADD', leases, expiry, session)
  end
end
