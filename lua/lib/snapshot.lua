-- Keep what makes a rebuilt agent warm. Only from commit and end, under their turn's fence (rule 12).
local function write_snapshot(room, session, record, data, ttl)
  if data == '' then return end
  local key = room.prefix .. 'snapshot:' .. session
  redis.call('HSET', key, 'signature', record.signature, 'fence', record.fence, 'data', data)
  redis.call('PEXPIRE', key, ttl)
end
