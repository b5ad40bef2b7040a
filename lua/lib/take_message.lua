-- include: lib/answer_key
-- include: lib/last_for
-- include: lib/message_of

-- The turn has its lease: whoever delivers its message again is told so.
local function take_message(room, session, turn, ms)
  local message = message_of(turn)
  if not message then return end
  redis.call('HSET', room.prefix .. answer_key(session, message), 'turn', turn)
  last_for(room, answer_key(session, message), ms)
end
