-- include: lib/journal

-- A worker is gone, and holds nothing any more.
local function remove_worker(room, worker, reason)
  redis.call('ZREM', room.prefix .. 'workers', worker)
  redis.call('DEL', room.prefix .. 'worker:' .. worker)
  redis.call('HDEL', room.prefix .. 'over', 'held:' .. worker)
  note(room, 'gone', 'worker', worker, 'reason', reason)
end
