-- include: lib/last_for

-- Keep what makes a rebuilt agent warm; only under an accepted turn's fence (rule 12). '': what is kept stays;
-- msgpack's nil: this turn has none, and an old one must not be taken for it.
local function write_snapshot(room, session, record, data, ttl)
  if data == '' then return end
  local key = 'snapshot:' .. session
  if data == '\192' then
    redis.call('DEL', room.prefix .. key)
    return
  end
  redis.call('HSET', room.prefix .. key, 'signature', record.signature, 'fence', record.fence, 'data', data)
  last_for(room, key, ttl)
end
