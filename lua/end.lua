-- The turn is over: give up its claims, touch the session or carry out an eviction, enforce the caps (rules 5, 6, 11).
--
-- KEYS[1]  the room's prefix
-- ARGV     1 session  2 turn: its id
--          3 stamped: '1' if the agent keeps an activity timestamp, so that idle time counts for it
--          4 evict: '<mode> <reason>' of an eviction the turn itself wants ('': none)
--          5 worker_cap: the caller's ('': none)  6 room_cap: likewise
--          7 snapshot ('': as before; msgpack's nil: none)  8 ttl: the snapshot's, ms
--          9 spent: ms for which this outcome is kept
--          10 answer: to the turn's message (see lib/message_of)
--          11 remember: ms for which that is kept (0: there is none)
-- Returns  {mode, reason, over, more} : how the copy is to be released ('', '': it stays); over and more as in commit
-- Errors   LOST : the turn's lease ran out, was never given, or its agent was never committed;
--          UNKNOWNWORKER : join again and repeat; BADARG
-- Events   'evicted', 'over-cap'
-- include: lib/both_caps
-- include: lib/drop
-- include: lib/free
-- include: lib/keep_answer
-- include: lib/room
-- include: lib/set_for
-- include: lib/snapshot
-- include: lib/tick
-- include: lib/turn
local room = this_room(KEYS[1])
local session, turn, prefix = ARGV[1], ARGV[2], KEYS[1]
local numbers = tonumber(ARGV[8]) and tonumber(ARGV[9]) and tonumber(ARGV[11])
if not (numbers and (ARGV[4] == '' or string.match(ARGV[4], '^%l+ %l+$'))) then
  return redis.error_reply('BADARG end')
end
local record = current_turn(room, session, turn)
if not record or record.state ~= 'live' then
  local ended = redis.call('GET', prefix .. 'ended:' .. turn)
  if ended == 'kept' then return { '', '', 0, 0 } end
  local mode, reason = string.match(ended or '', '^(%l+) (%l+)$')
  if not mode then return refuse_turn(room, turn) end
  return { mode, reason, 0, 0 }
end

free_leases(room, session, record)
record.turn = false
local wanted = record.evict or ARGV[4]
if string.sub(ARGV[4], 1, 4) == 'hard' then wanted = ARGV[4] end
local mode, reason = '', ''
if wanted ~= '' then
  mode, reason = string.match(wanted, '^(%l+) (%l+)$')
  if mode ~= 'hard' then write_snapshot(room, session, record, ARGV[7], ARGV[8]) end
  mode = drop_copy(room, session, record, mode, reason)
  wanted = mode .. ' ' .. reason
else
  local tick = next_tick(room, 0)
  redis.call('ZADD', prefix .. 'lru', tick, session)
  redis.call('ZADD', prefix .. 'held:' .. record.worker, tick, session)
  if ARGV[3] == '1' then redis.call('ZADD', prefix .. 'activity', string.format('%.0f', room.ms), session) end
  redis.call('HDEL', prefix .. 'session:' .. session, 'turn', 'lease', 'since', 'key')
  write_snapshot(room, session, record, ARGV[7], ARGV[8])
  wanted = 'kept'
end
set_for(room, 'ended:' .. turn, wanted, ARGV[9])
if ARGV[11] ~= '0' then keep_answer(room, session, turn, ARGV[10], ARGV[11]) end
return { mode, reason, enforce_caps(room, record.worker, ARGV[5], ARGV[6]) }
