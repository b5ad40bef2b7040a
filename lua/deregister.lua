-- A worker leaves the room. It has evicted its copies before; what it still holds, because a turn was left open, is
-- reaped like a dead worker's.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 worker  2 instance
-- Returns  1, or 0 when the room does not know the worker, or another instance of it
-- Events   'gone'
-- include: lib/remove_worker
-- include: lib/room
local room = this_room(KEYS[1])
local worker, prefix = ARGV[1], KEYS[1]
if redis.call('HGET', prefix .. 'worker:' .. worker, 'instance') ~= ARGV[2] then return 0 end
if redis.call('ZCARD', prefix .. 'held:' .. worker) > 0 then
  redis.call('ZADD', prefix .. 'workers', string.format('%.0f', room.ms), worker)
  redis.call('HSET', prefix .. 'worker:' .. worker, 'state', 'draining')
  return 1
end
remove_worker(room, worker, 'drain')
return 1
