-- Take a place in line, at `tick` unless the turn has one already; it lasts for `ms` unless the caller asks again.
local function join_queue(room, keys, turn, worker, ms, tick)
  redis.call('SET', room.prefix .. 'waiter:' .. turn, worker, 'PX', ms)
  for _, key in ipairs(keys) do
    redis.call('ZADD', room.prefix .. 'waiting:' .. key, 'NX', tick, turn)
    redis.call('PEXPIRE', room.prefix .. 'waiting:' .. key, 4 * ms)
  end
end
