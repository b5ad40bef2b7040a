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

-- Take a place in line, at `tick` unless the turn has one already; it lasts for `ms` unless the caller asks again.
local function join_queue(room, keys, turn, worker, ms, tick)
  redis.call('SET', room.prefix .. 'waiter:' .. turn, worker, 'PX', ms)
  for _, key in ipairs(keys) do
    redis.call('ZADD', room.prefix .. 'waiting:' .. key, 'NX', tick, turn)
    redis.call('PEXPIRE', room.prefix .. 'waiting:' .. key, 4 * ms)
  end
end

-- Give up a place in line. If it was the first and nobody holds the key, the next one is woken.
local function leave_queue(room, keys, turn)
  redis.call('DEL', room.prefix .. 'waiter:' .. turn)
  for _, key in ipairs(keys) do
    local left = redis.call('ZREM', room.prefix .. 'waiting:' .. key, turn)
    if left == 1 and not redis.call('ZSCORE', room.prefix .. 'leases', key) then wake(room, key) end
  end
end
