-- Reconcile, first pass (rules 14, 15): a worker shows what it holds and hears what to keep. In grace an owner
-- re-asserts: its copy is entered again, with its lease if mid-turn. Of two claims the higher fence wins: the last use.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 worker  2 lease, ms  3 floor
--          then session, generation, signature, state, turn, fence, key, stamped … : at most BATCH copies, the
--          oldest first; state 'unsure': whether its last turn's end was accepted is not known, so it is not
--          entered again; turn: its id ('': idle); stamped: '1' if idle time counts
-- Returns  for each copy 'keep' | 'soft' | 'hard' : release it that way
-- Errors   UNKNOWNWORKER : join first
-- Events   'adopted'; 'moved' or 'lost' of a copy with a lower fence
-- include: lib/count_turn
-- include: lib/drop
-- include: lib/enter
-- include: lib/grace
-- include: lib/lease_on
-- include: lib/journal
-- include: lib/record
-- include: lib/room
-- include: lib/take
-- include: lib/tick
local room = this_room(KEYS[1])
local worker, lease, floor, prefix = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), KEYS[1]
if not redis.call('ZSCORE', prefix .. 'workers', worker) then return redis.error_reply('UNKNOWNWORKER') end
local grace = grace_left(room) > 0

local function adopt(session, generation, signature, state, turn, fence, key, stamped)
  if turn ~= '' and redis.call('EXISTS', prefix .. 'ended:' .. turn) == 1 then return 'soft' end
  if redis.call('HEXISTS', prefix .. 'closing', session) == 1 then return 'soft' end
  local rivals = { session }
  for _, name in ipairs(turn ~= '' and { session, key } or {}) do
    local whose = lease_on(room, name)
    if whose and whose ~= session then rivals[#rivals + 1] = whose end
  end
  if tonumber(redis.call('GET', prefix .. 'gone:' .. session) or 0) >= tonumber(fence) then return 'soft' end
  for _, rival in ipairs(rivals) do
    local used = redis.call('HGET', prefix .. 'session:' .. rival, 'fence')
    if used and tonumber(used) >= tonumber(fence) then return 'soft' end
  end
  for _, rival in ipairs(rivals) do
    local record = read_record(room, rival)
    if record.worker then drop_copy(room, rival, record, 'soft', record.turn and 'lost' or 'moved') end
  end
  local tick = next_tick(room, floor)
  redis.call('HSET', prefix .. 'session:' .. session, 'worker', worker, 'signature', signature,
    'generation', generation, 'state', state, 'fence', fence)
  if state == 'live' then enter_copy(room, session, worker, signature, tick) end
  local now = string.format('%.0f', room.ms)
  if turn ~= '' then
    take_leases(room, session, key, room.ms + lease)
    count_turn(room, worker, 1, state)
    redis.call('HSET', prefix .. 'session:' .. session, 'turn', turn, 'lease', lease, 'since', now)
    if key then redis.call('HSET', prefix .. 'session:' .. session, 'key', key) end
  elseif stamped == '1' then
    redis.call('ZADD', prefix .. 'activity', now, session)
  end
  note(room, 'adopted', 'session', session, 'worker', worker, 'generation', generation)
  return 'keep'
end

local answer = {}
for i = 4, #ARGV, 8 do
  local session, generation, key = ARGV[i], ARGV[i + 1], ARGV[i + 6]
  local record = read_record(room, session)
  if record.worker == worker and record.generation == generation then
    answer[#answer + 1] = 'keep'
  elseif redis.call('HGET', prefix .. 'closing', session) == worker .. ' ' .. generation then
    answer[#answer + 1] = 'hard'
  elseif grace and ARGV[i + 3] ~= 'unsure' then
    answer[#answer + 1] = adopt(session, generation, ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], ARGV[i + 5],
      key ~= '' and key ~= session and key or nil, ARGV[i + 7])
  else
    answer[#answer + 1] = 'soft'
  end
end
return answer
