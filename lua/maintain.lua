-- Maintenance, a bounded batch of it (rule 13): expired leases, dead workers, idle sessions, caps, ends of sessions
-- that nobody carries out. No leader does it: it rides on the workers' beats, at most one a second.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 steps: 'all' | 'reap' | 'sweep' | 'caps'  2 worker: who does it ('': nobody's beat)
--          3 paced: '1' if one a second is enough  4 idle_ttl, ms ('': none)  5 worker_cap ('': none)  6 room_cap
--          where the last call stopped ('0': from the start):  7 held_from: in the worker's window
--          8 lru_from: in the room's  9 cursor: in the ends of sessions
-- Returns  {{name, number …}, {session, generation …}} : `lost` leases that ran out, `gone` dead workers, `idle`
--          sessions, `capped` copies above a cap, `over` how far over a cap, if that is news; `more` is 1 when there is
--          more to do; `paced` is 1 when this second's maintenance is another worker's; `held_from`, `lru_from` and
--          `cursor` are for the next call; then the ends of sessions that are the caller's to carry out
-- Events   'lost', 'evicted', 'gone', 'over-cap'
-- include: lib/batch
-- include: lib/caps
-- include: lib/free_first
-- include: lib/maintenance
-- include: lib/room
-- include: lib/set_for
local room = this_room(KEYS[1])
free_first(room)
local steps, worker, prefix = ARGV[1], ARGV[2], KEYS[1]
local set = redis.call('HMGET', prefix .. 'settings', 'idle_ttl', 'worker', 'room')
local done = { lost = 0, gone = 0, idle = 0, capped = 0, over = 0, more = 0, paced = 0, held_from = 0, lru_from = 0 }
local endings, cursor, budget = {}, '0', BATCH

local function does(step) return steps == 'all' or steps == step end

local function cap(index, limit, from, name)
  local dropped, over, at = enforce_cap(room, index, limit, tonumber(from), budget)
  budget = budget - dropped
  done.capped, done.over, done[name] = done.capped + dropped, math.max(done.over, over), at or 0
  if at then done.more = 1 end
end

local mine = ARGV[3] ~= '1' or set_for(room, 'maintenance', worker, 1000, 'NX')
if not mine then done.paced = 1 end
if mine and does('reap') then
  local looked, dropped
  done.lost, looked = reap_leases(room, budget)
  budget = budget - looked
  done.gone, dropped = reap_workers(room, worker, budget)
  budget = budget - dropped
end
if mine and does('sweep') then
  done.idle = sweep_idle(room, tonumber(set[1] or ARGV[4]), budget)
  budget = budget - done.idle
end
if does('caps') and worker ~= '' then cap('held:' .. worker, tonumber(set[2] or ARGV[5]), ARGV[7], 'held_from') end
if does('caps') and mine then cap('lru', tonumber(set[3] or ARGV[6]), ARGV[8], 'lru_from') end
if steps == 'all' and worker ~= '' then endings, cursor = take_endings(room, worker, mine, ARGV[9]) end
if budget <= 0 or cursor ~= '0' then done.more = 1 end
local named = { 'cursor', cursor }
for name, number in pairs(done) do
  named[#named + 1] = name
  named[#named + 1] = number
end
return { named, endings }
