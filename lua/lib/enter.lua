-- A copy enters the room's indices (the counterpart of drop_copy): at commit, and when its owner re-asserts it.
local function enter_copy(room, session, worker, signature, tick)
  redis.call('ZADD', room.prefix .. 'lru', tick, session)
  redis.call('ZADD', room.prefix .. 'held:' .. worker, tick, session)
  redis.call('ZINCRBY', room.prefix .. 'signatures', 1, signature)
end
