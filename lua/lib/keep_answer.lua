-- include: lib/batch
-- include: lib/message
-- include: lib/message_of
-- include: lib/remember_message

-- The turn was accepted: keep the answer to its message, and wake those in line who deliver that again.
local function keep_answer(room, session, turn, answer, ms)
  local message = remember_message(room, session, turn, ms, 'answer', answer)
  for _, waiter in ipairs(message and redis.call('ZRANGE', room.prefix .. 'waiting:' .. session, 0, BATCH - 1) or {}) do
    local worker = message_of(waiter) == message and redis.call('GET', room.prefix .. 'waiter:' .. waiter)
    if worker then send(room, worker, session, 'wake', 'turn', waiter) end
  end
end
