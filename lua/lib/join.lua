-- include: lib/last_for
-- include: lib/set_for

-- Take a place in line for all of `keys`, at `tick` unless the turn has one already; it lasts for `ms` unless the
-- caller asks again. A place that has lapsed is given up everywhere: kept in one line and lost in another, it would
-- put two turns in each other's way for good.
local function join_queue(room, keys, turn, worker, ms, tick)
  local anew = redis.call('EXISTS', room.prefix .. 'waiter:' .. turn) == 0
  set_for(room, 'waiter:' .. turn, worker, ms)
  for _, key in ipairs(keys) do
    local line = room.prefix .. 'waiting:' .. key
    if anew then redis.call('ZREM', line, turn) end
    redis.call('ZADD', line, 'NX', tick, turn)
    last_for(room, 'waiting:' .. key, 4 * ms)
  end
end
