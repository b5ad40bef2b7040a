-- A worker takes no new sessions from now on (rule 8). It hears of it on its channel, or at its next beat.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 worker  2 instance ('': whichever there is)
-- Returns  1, or 0 when the room does not know the worker
-- Events   'draining'
-- include: lib/journal
-- include: lib/message
-- include: lib/room
local room = this_room(KEYS[1])
local worker, name = ARGV[1], KEYS[1] .. 'worker:' .. ARGV[1]
local there = redis.call('HMGET', name, 'state', 'instance')
if not there[1] or (ARGV[2] ~= '' and ARGV[2] ~= there[2]) then return 0 end
if there[1] ~= 'draining' then
  redis.call('HSET', name, 'state', 'draining')
  note(room, 'draining', 'worker', worker)
end
send(room, worker, '', 'drain', 'worker', worker)
return 1
