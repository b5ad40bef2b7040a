-- include: lib/answer_key
-- include: lib/message_of

-- What became of a turn's message before, if there is nothing left to do: 'answered', with the answer; or 'died', where
-- this very delivery had a turn that is over without one. `running`: the turn that has the session's lease.
local function settled(room, session, turn, running)
  local message, delivery = message_of(turn)
  if not message then return nil end
  local known = redis.call('HMGET', room.prefix .. answer_key(session, message), 'turn', 'answer')
  if known[2] then return 'answered', known[2] end
  local _, earlier = message_of(known[1])
  if earlier == delivery and known[1] ~= turn and known[1] ~= running then return 'died' end
end
