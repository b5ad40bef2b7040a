-- include: lib/answer_key
-- include: lib/batch
-- include: lib/last_for
-- include: lib/message
-- include: lib/message_of

-- The turn was accepted: keep the answer to its message, and wake those in line who deliver that again.
local function keep_answer(room, session, turn, answer, ms)
  local message = message_of(turn)
  if not message then return end
  redis.call('HSET', room.prefix .. answer_key(session, message), 'turn', turn, 'answer', answer)
  last_for(room, answer_key(session, message), ms)
  for _, waiter in ipairs(redis.call('ZRANGE', room.prefix .. 'waiting:' .. session, 0, BATCH - 1)) do
    local worker = message_of(waiter) == message and redis.call('GET', room.prefix .. 'waiter:' .. waiter)
    if worker then send(room, worker, session, 'wake', 'turn', waiter) end
  end
end
