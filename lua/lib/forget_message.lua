-- include: lib/answer_key
-- include: lib/message_of

-- A turn that had its lease will not run: as if its message had never come.
local function forget_message(room, session, turn)
  local message = message_of(turn)
  if not message then return end
  local key = room.prefix .. answer_key(session, message)
  if redis.call('HGET', key, 'turn') == turn then redis.call('DEL', key) end
end
