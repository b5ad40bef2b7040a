-- include: lib/batch
-- include: lib/message

-- First in line for a key, and its worker. A waiter that stopped asking is stale: it is taken out of the queue. After
-- more stale ones than a call may look at, '': somebody may be behind them.
local function head_waiter(room, key)
  local queue, most = room.prefix .. 'waiting:' .. key, 1
  for _ = 1, 16 do
    local turns = redis.call('ZRANGE', queue, 0, most - 1)
    if #turns == 0 then return nil end
    local names = {}
    for i, turn in ipairs(turns) do names[i] = room.prefix .. 'waiter:' .. turn end
    local workers, stale = redis.call('MGET', unpack(names)), 0
    while stale < #turns and not workers[stale + 1] do stale = stale + 1 end
    if stale > 0 then redis.call('ZREMRANGEBYRANK', queue, 0, stale - 1) end
    if stale < #turns then return turns[stale + 1], workers[stale + 1] end
    most = BATCH
  end
  return ''
end

-- The key is free: wake whoever is first in line.
local function wake(room, key)
  local turn, worker = head_waiter(room, key)
  if worker then send(room, worker, key, 'wake', 'turn', turn) end
end
