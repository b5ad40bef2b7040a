-- Evict one session, wherever its copy is (rules 10, 11).
--
-- KEYS[1]  the room's prefix
-- ARGV     1 session  2 mode: soft | hard  3 reason  4 worker that can end the session itself ('': none)
-- Returns  {'evicted', worker, generation} | {'marked', worker, generation} : mid-turn, its end carries it out
--          {'absent'} : nobody holds a copy; after a hard eviction the worker of ARGV[4] ends the session
--          {'closing'} : nobody holds a copy, and a hard eviction is being carried out already
-- Errors   BADARG
-- Events   'evicted'
-- include: lib/bury
-- include: lib/evict
-- include: lib/record
-- include: lib/room
local room = open_room(KEYS[1])
local session, mode, reason, prefix = ARGV[1], ARGV[2], ARGV[3], KEYS[1]
if not string.match(mode .. ' ' .. reason, '^%l+ %l+$') then return redis.error_reply('BADARG evict') end
local record = read_record(room, session)
if record.worker then
  return { evict_copy(room, session, record, mode, reason), record.worker, record.generation }
end
if mode == 'hard' then redis.call('DEL', prefix .. 'snapshot:' .. session) end
bury(room, session, mode, redis.call('GET', prefix .. 'clock') or '0')
if mode ~= 'hard' then return { 'absent' } end
local mine = ARGV[4] .. ' 0'
redis.call('HSETNX', prefix .. 'closing', session, mine)
return { redis.call('HGET', prefix .. 'closing', session) == mine and 'absent' or 'closing' }
