-- Ask for a turn on a session (rules 3, 4, 6, 7, 8, 9, 11a, 15; H18).
--
-- KEYS[1]  the room's prefix, `greenroom:{<room>}:`
-- ARGV     1 session  2 worker  3 turn: its id  4 signature  5 generation: of the caller's copy ('0': none)
--          6 lease, ms  7 floor: highest fence the caller has seen  8 key: lease key ('': the session)
--          9 queue, ms: for how long a place in line lasts unless the caller asks again (0: do not wait)
--          10 most: how many may stand in a line for this turn to join it (0: any number)
--          11 affinity: '1' if the turn would rather go where the agent is than have it moved here
--          12 place: ' ' if a session that nobody holds is to go where there is most room, and not just here;
--          ' w x ' if it is not to go to those ('': it stays)
--          13 remember, ms: for how long it is known which turn a message has (see lib/message_of)
-- Returns  {'hit', fence, generation} | {'build', fence, snapshot or ''} : the lease is taken
--          {'busy', why, worker, ms left, ms it has run, how many wait before, number} : why is 'turn', 'repeat' (that
--          turn is for the same message) or 'full' (there is no place in line), number its fence; 'queue' or 'grace'
--          (no worker); or 'closing': that worker ends the session's last life first, maybe the caller, and number is
--          the generation; another is told so again
--          {'elsewhere', worker, address, instance, now, ms} : affinity or place was asked for, and it belongs there
--          {'answered', answer} : the turn's message has one already
--          {'died'} : this delivery of the message had a turn that is over without an answer, or is too old to have one
-- Errors   ENDED, DRAINING, UNKNOWNWORKER, BADARG
-- Events   'moved', 'evicted' (signature), 'lost' of the copy that was there
-- include: lib/busy
-- include: lib/ending_of
-- include: lib/grace
-- include: lib/grant
-- include: lib/lease_on
-- include: lib/lease
-- include: lib/leave
-- include: lib/message
-- include: lib/message_of
-- include: lib/place
-- include: lib/queue
-- include: lib/read_snapshot
-- include: lib/record
-- include: lib/room
-- include: lib/serves
-- include: lib/settled
local room = this_room(KEYS[1])
local session, worker, turn, signature, generation = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local lease, floor, queue, most = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[9]), tonumber(ARGV[10])
local key = ARGV[8] ~= '' and ARGV[8] ~= session and ARGV[8] or nil
local sane = lease and lease > 0 and floor and floor >= 0 and floor < 2 ^ 53 - 2 ^ 40
if not (sane and queue and most and tonumber(ARGV[13])) then return redis.error_reply('BADARG begin') end
local prefix, names = room.prefix, { session, key }
local asked = { names = names, key = key, turn = turn, worker = worker, signature = signature, lease = lease,
  queue = queue, most = most, floor = floor, remember = ARGV[13] }

if redis.call('EXISTS', prefix .. 'ended:' .. turn) == 1 then return redis.error_reply('ENDED the turn is over') end
local record = read_record(room, session)
local left_to_run = lease_left(room, session, record)
if record.turn == turn and left_to_run > 0 then
  if record.generation ~= record.fence then return { 'hit', record.fence, record.generation } end
  return { 'build', record.fence, read_snapshot(room, session, signature) }
end
local what, answer = settled(room, session, turn, left_to_run > 0 and record.turn, queue)
if what then
  leave_queue(room, names, turn)
  return { what, answer }
end

local doomed = record.turn and left_to_run == 0 -- its copy is nobody's any more
local mine = record.worker == worker and not doomed
local there = record.worker and record.worker ~= worker and serves(room, record.worker)
if ARGV[11] == '1' and there then
  return { 'elsewhere', record.worker, there.address, there.instance, room.ms }
end
if not (mine and record.generation == generation) then
  if not redis.call('ZSCORE', prefix .. 'workers', worker) then return redis.error_reply('UNKNOWNWORKER') end
  local leaves = not mine and redis.call('HGET', prefix .. 'worker:' .. worker, 'state') == 'draining'
  local cold = ARGV[12] ~= '' and not (mine or there)
  if cold and (leaves or redis.call('EXISTS', prefix .. 'waiter:' .. turn) == 0) then -- who waits in line stays
    local best, at = place_session(room, worker, ARGV[12])
    if best and best ~= worker then return { 'elsewhere', best, at.address, at.instance, room.ms } end
  end
  if leaves then
    return redis.error_reply('DRAINING the worker takes no new sessions')
  end
end

local queued = false
for _, name in ipairs(names) do
  local whose, theirs, left = lease_on(room, name)
  if whose then
    local message = whose == session and message_of(turn)
    local why = message and message == message_of(theirs.turn) and 'repeat' or 'turn'
    return busy(room, asked, why, theirs.worker, left, theirs.since, theirs.fence)
  end
  local first = head_waiter(room, name)
  if first and first ~= turn then return busy(room, asked, 'queue', '', 0) end
  queued = queued or first == turn
end
if doomed then record = {} end -- dropped just now, with the lease that ran out
local ends, ending = ending_of(room, session, worker)
if ends then
  if ends ~= '' and ends ~= worker then send(room, ends, session, 'hard', 'generation', ending, 'reset') end -- again
  return busy(room, asked, 'closing', ends, 0, nil, ending)
end

local hit = record.state == 'live' and mine and record.generation == generation and record.signature == signature
if not record.worker or key then
  local grace = grace_left(room)
  if grace > 0 then return busy(room, asked, 'grace', '', grace) end
end
local fence = grant(room, session, record, asked, hit, mine)
if queued then leave_queue(room, names, turn) end
if hit then return { 'hit', fence, record.generation } end
return { 'build', fence, read_snapshot(room, session, signature) }
