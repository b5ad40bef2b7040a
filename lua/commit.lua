-- The agent is built: its copy enters the room (rule 5). Then the caps are enforced.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 session  2 turn: its id  3 worker_cap: the caller's ('': none)  4 room_cap: likewise
-- Returns  {over, more} : how far over a cap the room stays because of turns, if that is news, else 0;
--          1 if more is above a cap than a call may look at: the caller goes on with `maintain`
-- Errors   LOST : the turn's lease ran out, or was never given; UNKNOWNWORKER : join again and repeat
-- Events   'built'; 'evicted' (lru), 'over-cap'
-- include: lib/both_caps
-- include: lib/enter
-- include: lib/journal
-- include: lib/room
-- include: lib/tally
-- include: lib/tick
-- include: lib/turn
local room = this_room(KEYS[1])
local session, turn = ARGV[1], ARGV[2]
local record = current_turn(room, session, turn)
if not record then return refuse_turn(room, turn) end
if record.state == 'live' then return { 0, 0 } end
if not redis.call('ZSCORE', room.prefix .. 'workers', record.worker) then return redis.error_reply('UNKNOWNWORKER') end

tally(room, 'building', record.worker, -1)
enter_copy(room, session, record.worker, record.signature, next_tick(room, 0))
redis.call('HSET', room.prefix .. 'session:' .. session, 'state', 'live')
redis.call('HINCRBY', room.prefix .. 'counters', 'builds', 1)
note(room, 'built', 'session', session, 'worker', record.worker, 'generation', record.generation,
  'signature', record.signature)
return { enforce_caps(room, record.worker, ARGV[3], ARGV[4]) }
