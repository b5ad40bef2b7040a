-- Evict a batch of sessions (rules 10, 11): those of them that have a copy, fit the filters and, with 'skip', are idle.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 mode  2 reason  3 signature ('': any)  4 worker ('': any)
--          5 mid_turn: 'mark' or 'skip' sessions that are  then session … : at most BATCH
-- Returns  {evicted, marked}
-- Errors   BADARG
-- Events   'evicted'
-- include: lib/evict
-- include: lib/lease
-- include: lib/record
-- include: lib/room
local room = this_room(KEYS[1])
local mode, reason, signature, worker, skip = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == 'skip'
if not string.match(mode .. ' ' .. reason, '^%l+ %l+$') then return redis.error_reply('BADARG evict_many') end
local count = { evicted = 0, marked = 0 }
for i = 6, #ARGV do
  local session = ARGV[i]
  local record = read_record(room, session)
  local fits = record.worker and (signature == '' or record.signature == signature)
    and (worker == '' or record.worker == worker)
  if fits and not (skip and lease_left(room, session, record) > 0) then
    local done = evict_copy(room, session, record, mode, reason)
    count[done] = count[done] + 1
  end
end
return { count.evicted, count.marked }
