-- The agent is built: its copy enters the room (rule 5). Then the caps are enforced.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 session  2 turn id  3 the caller's cap for the worker ('': none)  4 and for the room
--          5 snapshot ('': none)  6 its time to live, ms
-- Returns  {'live', over} : how far over a cap the room stays because of turns, if that is news, else 0
-- Errors   LOST : the turn's lease ran out, or was never given; UNKNOWNWORKER : join again and repeat; BADARG
-- Events   'built'; 'evicted' (lru), 'over-cap'
-- include: lib/both_caps
-- include: lib/enter
-- include: lib/journal
-- include: lib/room
-- include: lib/snapshot
-- include: lib/tick
-- include: lib/turn
local room = open_room(KEYS[1])
local session, turn = ARGV[1], ARGV[2]
if not tonumber(ARGV[6]) then return redis.error_reply('BADARG commit') end
local record = current_turn(room, session, turn)
if not record then return refuse_turn(room, turn) end
if record.state == 'live' then return { 'live', 0 } end
if not redis.call('ZSCORE', room.prefix .. 'workers', record.worker) then return redis.error_reply('UNKNOWNWORKER') end

enter_copy(room, session, record.worker, record.signature, next_tick(room, 0))
redis.call('HSET', room.prefix .. 'session:' .. session, 'state', 'live')
redis.call('HINCRBY', room.prefix .. 'counters', 'builds', 1)
note(room, 'built', 'session', session, 'worker', record.worker, 'generation', record.generation,
  'signature', record.signature)
write_snapshot(room, session, record, ARGV[5], ARGV[6])
return { 'live', enforce_caps(room, record.worker, ARGV[3], ARGV[4]) }
