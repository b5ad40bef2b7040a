-- include: lib/queue

-- Give up a place in line. If it was the first and nobody holds the key, the next one is woken.
local function leave_queue(room, keys, turn)
  redis.call('DEL', room.prefix .. 'waiter:' .. turn)
  for _, key in ipairs(keys) do
    local left = redis.call('ZREM', room.prefix .. 'waiting:' .. key, turn)
    if left == 1 and not redis.call('ZSCORE', room.prefix .. 'leases', key) then wake(room, key) end
  end
end
