-- include: lib/answer_key
-- include: lib/delivery
-- include: lib/message_of
-- include: lib/remember_message

-- What became of a turn's message before, if there is nothing left to do: 'answered', with the answer; or 'died' if
-- this delivery had a turn that is over without one, or comes so late that it may have had one. `running`: the turn
-- that has the session's lease; who waits for it asks again within `queue` ms, and keeps it known until then.
local function settled(room, session, turn, running, queue)
  local message, delivery = message_of(turn)
  if not message then return nil end
  local known = redis.call('HMGET', room.prefix .. answer_key(session, message), 'turn', 'answer')
  if known[2] then return 'answered', known[2] end
  if delivery == '' or known[1] == turn then return nil end
  local _, theirs = message_of(running)
  if theirs == delivery then -- it runs
    remember_message(room, session, running, 2 * queue)
    return nil
  end
  _, theirs = message_of(known[1])
  if theirs == delivery then return 'died' end
  local made = tonumber(string.sub(delivery, 1, 12), 16) or 0
  local late = room.ms - made > DELIVERY_MS
  if late and redis.call('EXISTS', room.prefix .. 'waiter:' .. turn) == 0 then return 'died' end
end
