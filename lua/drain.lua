-- A worker takes no new sessions from now on (rule 8). It hears of it on its channel, or at its next beat.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 worker
-- Returns  1, or 0 when the room does not know the worker
-- Events   'draining'
-- include: lib/journal
-- include: lib/message
-- include: lib/room
local room = open_room(KEYS[1])
local worker, name = ARGV[1], KEYS[1] .. 'worker:' .. ARGV[1]
local state = redis.call('HGET', name, 'state')
if not state then return 0 end
if state ~= 'draining' then
  redis.call('HSET', name, 'state', 'draining')
  note(room, 'draining', 'worker', worker)
end
send(room, worker, '', 'drain', 'worker', worker)
return 1
