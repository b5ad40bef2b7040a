-- include: lib/message

-- First in line for a key, and its worker. A waiter that stopped asking is stale: it is taken out of the queue.
local function head_waiter(room, key)
  local queue = room.prefix .. 'waiting:' .. key
  for _ = 1, 64 do
    local turn = redis.call('ZRANGE', queue, 0, 0)[1]
    if not turn then return nil end
    local worker = redis.call('GET', room.prefix .. 'waiter:' .. turn)
    if worker then return turn, worker end
    redis.call('ZREM', queue, turn)
  end
end

-- The key is free: wake whoever is first in line.
local function wake(room, key)
  local turn, worker = head_waiter(room, key)
  if turn then send(room, worker, key, 'wake', 'turn', turn) end
end
