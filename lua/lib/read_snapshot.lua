-- The session's snapshot, if an agent with this signature wrote it.
local function read_snapshot(room, session, signature)
  local saved = redis.call('HMGET', room.prefix .. 'snapshot:' .. session, 'signature', 'data')
  return saved[1] == signature and saved[2] or ''
end
