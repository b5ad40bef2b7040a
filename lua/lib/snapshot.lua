-- include: lib/last_for

-- Keep what makes a rebuilt agent warm. Only from commit and end, under their turn's fence (rule 12).
local function write_snapshot(room, session, record, data, ttl)
  if data == '' then return end
  local key = 'snapshot:' .. session
  redis.call('HSET', room.prefix .. key, 'signature', record.signature, 'fence', record.fence, 'data', data)
  last_for(room, key, ttl)
end
