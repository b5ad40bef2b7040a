-- Take a place in line for all of `keys`, at `tick` unless the turn has one already; it lasts for `ms` unless the
-- caller asks again. A place that has lapsed is given up everywhere: kept in one line and lost in another, it would
-- put two turns in each other's way for good.
local function join_queue(room, keys, turn, worker, ms, tick)
  local waiter = room.prefix .. 'waiter:' .. turn
  local anew = redis.call('EXISTS', waiter) == 0
  redis.call('SET', waiter, worker, 'PX', ms)
  for _, key in ipairs(keys) do
    local line = room.prefix .. 'waiting:' .. key
    if anew then redis.call('ZREM', line, turn) end
    redis.call('ZADD', line, 'NX', tick, turn)
    if redis.call('PTTL', line) < 4 * ms then redis.call('PEXPIRE', line, 4 * ms) end
  end
end
