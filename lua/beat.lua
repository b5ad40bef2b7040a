-- A worker's beat: its heartbeat, and the leases of its turns in one batch (rules 4, 17, 18).
--
-- KEYS[1]  the room's prefix
-- ARGV     1 worker  2 lease, ms  3 schema: its version  4 instance  then session, turn … : at most 256 pairs
-- Returns  {epoch, state of the worker, session, turn id … } : the pairs are the turns that were lost
-- Errors   UNKNOWNWORKER : join again; TAKEN : another instance has taken its place; SCHEMA
-- include: lib/free_first
-- include: lib/lease
-- include: lib/record
-- include: lib/room
-- include: lib/take
local room = this_room(KEYS[1])
local worker, lease, prefix = ARGV[1], tonumber(ARGV[2]), KEYS[1]
local have = redis.call('HGET', prefix .. 'settings', 'schema')
if have and have ~= ARGV[3] then return redis.error_reply('SCHEMA the room has schema ' .. have) end
local about = redis.call('HMGET', prefix .. 'worker:' .. worker, 'state', 'instance')
local known = about[2] and redis.call('ZSCORE', prefix .. 'workers', worker)
if not known then return redis.error_reply('UNKNOWNWORKER') end
if about[2] ~= ARGV[4] then return redis.error_reply('TAKEN') end
free_first(room)
redis.call('ZADD', prefix .. 'workers', string.format('%.0f', room.ms + lease), worker)
local answer = { redis.call('GET', prefix .. 'epoch') or '', about[1] or 'up' }
for i = 5, #ARGV, 2 do
  local session, turn = ARGV[i], ARGV[i + 1]
  local record = read_record(room, session)
  if record.turn == turn and lease_left(room, session, record) > 0 then
    take_leases(room, session, record.key, room.ms + record.lease)
  else
    answer[#answer + 1] = session
    answer[#answer + 1] = turn
  end
end
return answer
