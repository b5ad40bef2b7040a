-- Evict one session, wherever its copy is (rules 10, 11).
--
-- KEYS[1]  the room's prefix
-- ARGV     1 session  2 mode: soft | hard  3 reason  4 caller: a worker that can end the session itself ('': none)
-- Returns  {'evicted', worker, generation} | {'marked', worker, generation} : mid-turn, its end carries it out
--          {'absent'} : nobody holds a copy, and a soft eviction has nothing to do
--          {'ending', worker, generation} : nobody holds a copy; that worker ('': the first to come) ends the session
-- Errors   BADARG
-- Events   'evicted'
-- include: lib/bury
-- include: lib/ending_of
-- include: lib/evict
-- include: lib/order_ending
-- include: lib/record
-- include: lib/room
-- include: lib/tick
local room = this_room(KEYS[1])
local session, mode, reason, caller, prefix = ARGV[1], ARGV[2], ARGV[3], ARGV[4], KEYS[1]
if not string.match(mode .. ' ' .. reason, '^%l+ %l+$') then return redis.error_reply('BADARG evict') end
local record = read_record(room, session)
if record.worker then
  return { evict_copy(room, session, record, mode, reason), record.worker, record.generation }
end
if mode ~= 'hard' then
  bury(room, session, redis.call('GET', prefix .. 'clock') or '0')
  return { 'absent' }
end
redis.call('DEL', prefix .. 'snapshot:' .. session)
local owner, generation = ending_of(room, session, caller)
if not owner then
  owner, generation = caller, next_tick(room, 0)
  order_ending(room, session, owner, generation)
end
bury(room, session, redis.call('GET', prefix .. 'clock') or '0')
return { 'ending', owner, generation }
