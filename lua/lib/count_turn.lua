-- Count a turn that runs on a worker (1), or that does not any more (-1).
local function count_turn(room, worker, by)
  local turns = room.prefix .. 'turns'
  if tonumber(redis.call('ZINCRBY', turns, by, worker)) <= 0 then redis.call('ZREM', turns, worker) end
end
