-- include: lib/answer_key
-- include: lib/delivery
-- include: lib/last_for
-- include: lib/message_of

-- Write down what becomes of a turn's message, for so many milliseconds at least. `...` goes to HSET.
local function remember_message(room, session, turn, ms, ...)
  local message = message_of(turn)
  if not message then return nil end
  redis.call('HSET', room.prefix .. answer_key(session, message), 'turn', turn, ...)
  last_for(room, answer_key(session, message), math.max(tonumber(ms), DELIVERY_MS + 1000))
  return message
end
