-- A worker leaves the room. It has evicted its copies before; turns it left open run out by themselves.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 worker
-- Returns  1, or 0 when the room does not know the worker
-- Events   'gone'
-- include: lib/journal
-- include: lib/room
local room = open_room(KEYS[1])
local worker, prefix = ARGV[1], KEYS[1]
if redis.call('ZREM', prefix .. 'workers', worker) == 0 then return 0 end
redis.call('DEL', prefix .. 'worker:' .. worker)
redis.call('HDEL', prefix .. 'over', 'held:' .. worker)
note(room, 'gone', 'worker', worker, 'reason', 'drain')
return 1
