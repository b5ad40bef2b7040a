-- A worker joins the room, or joins it again (rules 8, 15, 18).
--
-- KEYS[1]  the room's prefix
-- ARGV     1 worker  2 lease, ms  3 schema: its version  4 known: the epoch it knows ('': it is new)  5 floor
--          6 address  7 host  8 pid  9 state: up | draining  10 instance: which start of the worker this is
--          11 cap: how many copies it may hold ('': any number)
-- Returns  {'joined', epoch, ms of grace left}
--          {'taken', ms when its heartbeat runs out, ms left, host, pid} : another instance with this id is alive
-- Errors   SCHEMA : the room belongs to another version
-- Events   'up'
-- include: lib/grace
-- include: lib/journal
-- include: lib/left
-- include: lib/room
-- include: lib/tick
local room = this_room(KEYS[1])
local worker, lease, schema, known, prefix = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], KEYS[1]
local floor = tonumber(ARGV[5])
if not (lease and lease > 0 and floor) then return redis.error_reply('BADARG register') end
local have = redis.call('HGET', prefix .. 'settings', 'schema')
if have and have ~= schema then return redis.error_reply('SCHEMA the room has schema ' .. have) end
if not have then redis.call('HSET', prefix .. 'settings', 'schema', schema) end

local name = prefix .. 'worker:' .. worker
local there = redis.call('HMGET', name, 'instance', 'lease', 'host', 'pid')
local anew = there[1] ~= ARGV[10]
if there[1] and anew then
  local beat = redis.call('ZSCORE', prefix .. 'workers', worker)
  local left = time_left(room, beat, there[2])
  if left > 0 then return { 'taken', beat, left, there[3], there[4] } end
end

local epoch = redis.call('GET', prefix .. 'epoch')
if not epoch then
  epoch = next_tick(room, floor)
  redis.call('SET', prefix .. 'epoch', epoch)
  redis.call('DEL', prefix .. 'grace')
end
if known ~= '' and known ~= epoch then
  redis.call('SET', prefix .. 'grace', string.format('%.0f %.0f', room.ms + lease, lease), 'NX')
end
redis.call('HSET', name, 'address', ARGV[6], 'host', ARGV[7], 'pid', ARGV[8], 'lease', lease, 'state', ARGV[9],
  'instance', ARGV[10], 'cap', ARGV[11])
if anew then
  redis.call('HSET', name, 'started', string.format('%.0f', room.ms))
  note(room, 'up', 'worker', worker)
end
redis.call('ZADD', prefix .. 'workers', string.format('%.0f', room.ms + lease), worker)
return { 'joined', epoch, grace_left(room) }
