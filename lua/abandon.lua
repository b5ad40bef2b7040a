-- The turn will not happen: its build failed, its caller stopped waiting or was cancelled (rules 5, 6, 7).
-- A build leaves nothing, committed or not; a warm copy that was not used stays as it was; a place in line is given
-- up. The turn id is spent, so that a begin still on its way cannot take the lease behind us.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 session  2 turn: its id  3 key: lease key ('': the session)
--          4 stamped: '1' if idle time counts for the copy  5 worker_cap: the caller's ('': none)  6 room_cap: likewise
--          7 spent: ms for which the turn id stays so
-- Returns  'abandoned' | 'over' : a hard eviction was waiting for this build: the caller ends the session
-- include: lib/both_caps
-- include: lib/drop
-- include: lib/forget_message
-- include: lib/free
-- include: lib/lease
-- include: lib/leave
-- include: lib/order_ending
-- include: lib/record
-- include: lib/room
-- include: lib/set_for
local room = this_room(KEYS[1])
local session, turn, prefix = ARGV[1], ARGV[2], KEYS[1]
local spent = redis.call('GET', prefix .. 'ended:' .. turn)
if spent then return spent == 'over' and 'over' or 'abandoned' end

leave_queue(room, { session, ARGV[3] ~= '' and ARGV[3] or nil }, turn)

local answer = 'abandoned'
local record = read_record(room, session)
if record.turn == turn then
  local alive = lease_left(room, session, record) > 0
  local mode, reason = string.match(record.evict or '', '^(%l+) (%l+)$')
  if alive then
    forget_message(room, session, turn)
    free_leases(room, session, record)
    record.turn = false
  end
  if not alive then
    drop_copy(room, session, record, 'soft', 'lost')
  elseif record.state == 'building' then
    redis.call('DEL', prefix .. 'session:' .. session)
    if mode == 'hard' then
      order_ending(room, session, record.worker, record.generation)
      answer = 'over'
    end
  elseif mode or record.generation == record.fence then
    drop_copy(room, session, record, mode or 'soft', reason or 'lost')
  else
    redis.call('HDEL', prefix .. 'session:' .. session, 'turn', 'lease', 'since', 'key')
    if ARGV[4] == '1' then redis.call('ZADD', prefix .. 'activity', string.format('%.0f', room.ms), session) end
  end
  if alive then enforce_caps(room, record.worker, ARGV[5], ARGV[6]) end
end
set_for(room, 'ended:' .. turn, answer, ARGV[7])
return answer
