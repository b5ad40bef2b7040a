-- Hard closes and ends of sessions that were carried out, or given up on: their sessions may begin anew (rule 11a).
--
-- KEYS[1]  the room's prefix
-- ARGV     1 worker  2 instance  then session, generation … : at most BATCH pairs, as in `closing`
-- Returns  how many were still to be done
-- include: lib/queue
-- include: lib/room
local room = this_room(KEYS[1])
local closing, closed = KEYS[1] .. 'closing', 0
local there = redis.call('HGET', KEYS[1] .. 'worker:' .. ARGV[1], 'instance')
if there and there ~= ARGV[2] then return 0 end -- it has taken them over, with the worker's place
for i = 3, #ARGV, 2 do
  if redis.call('HGET', closing, ARGV[i]) == ARGV[1] .. ' ' .. ARGV[i + 1] then
    redis.call('HDEL', closing, ARGV[i])
    wake(room, ARGV[i])
    closed = closed + 1
  end
end
return closed
