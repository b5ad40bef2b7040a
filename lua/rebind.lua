-- Move a running turn's lease to another key (rule 9): its conversation id rotated mid-turn. A turn on stage cannot
-- wait: it goes before those in line for the new key.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 session  2 turn: its id  3 key: the new lease key
-- Returns  {'bound'} | {'busy', worker, ms left, ms it has run} : another turn holds that key; the lease stays
-- Errors   LOST; UNKNOWNWORKER : join again and repeat
-- include: lib/lease_on
-- include: lib/queue
-- include: lib/room
-- include: lib/take
-- include: lib/turn
local room = this_room(KEYS[1])
local session, turn, key, prefix = ARGV[1], ARGV[2], ARGV[3], KEYS[1]
local record = current_turn(room, session, turn)
if not record then return refuse_turn(room, turn) end
if (record.key or session) == key then return { 'bound' } end
if key ~= session then
  local whose, theirs, left = lease_on(room, key)
  if whose then return { 'busy', theirs.worker, left, room.ms - theirs.since } end
end
local expiry = redis.call('ZSCORE', prefix .. 'leases', session)
if record.key then
  redis.call('ZREM', prefix .. 'leases', record.key)
  redis.call('HDEL', prefix .. 'aliases', record.key)
  redis.call('HDEL', prefix .. 'session:' .. session, 'key')
  wake(room, record.key)
end
if key ~= session then
  take_leases(room, session, key, expiry)
  redis.call('HSET', prefix .. 'session:' .. session, 'key', key)
end
return { 'bound' }
