-- Maintenance, a bounded batch of it (rule 13): expired leases, dead workers, idle sessions, caps. No leader does it:
-- it rides on the workers' beats, at most one a second.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 steps: 'all' | 'reap' | 'sweep'  2 worker that does it ('': nobody's beat)  3 '1': one a second
--          4 idle time to live, ms ('': none)  5 cap for the worker ('': none)  6 cap for the room
--          7 offset of the worker's cap, 8 of the room's: where the last call left off
-- Returns  {lost, gone, idle, capped, more, over, offset 7, offset 8, session, generation …} : how many leases had run
--          out, workers were dead, sessions idle, copies above a cap; when there is more to do 1, or 2 if this second's
--          maintenance is another worker's and only the own cap needs more; how far over a cap;
--          then sessions whose hard close is the caller's, or was left to a worker that is gone: the caller ends them
-- Events   'lost', 'evicted', 'gone', 'over-cap'
-- include: lib/caps
-- include: lib/full
-- include: lib/maintenance
-- include: lib/room
-- include: lib/set_for
local room = open_room(KEYS[1])
open_when_full(room)
local steps, worker, prefix = ARGV[1], ARGV[2], KEYS[1]
local set = redis.call('HMGET', prefix .. 'settings', 'idle_ttl', 'worker', 'room')
local done = { 0, 0, 0, 0, 0, 0, 0, 0 }
local all = steps == 'all'

local budget = 64

local function cap(index, limit, slot)
  local dropped, over, offset = enforce_cap(room, index, limit, tonumber(ARGV[slot]), budget)
  budget = budget - dropped
  done[4] = done[4] + dropped
  done[6] = math.max(done[6], over)
  done[slot] = offset or 0
  if offset then done[5] = 1 end
end

local mine = ARGV[3] ~= '1' or set_for(room, 'maintenance', worker, 1000, 'NX')
if mine and steps ~= 'sweep' then
  local looked, dropped
  done[1], looked = reap_leases(room, budget)
  budget = budget - looked
  done[2], dropped = reap_workers(room, budget)
  budget = budget - dropped
end
if mine and steps ~= 'reap' then
  done[3] = sweep_idle(room, tonumber(set[1] or ARGV[4]), budget)
  budget = budget - done[3]
end
if all and worker ~= '' then cap('held:' .. worker, tonumber(set[2] or ARGV[5]), 7) end
if all and mine then
  cap('lru', tonumber(set[3] or ARGV[6]), 8)
  if worker ~= '' then take_endings(room, worker, done) end
end
if budget <= 0 then done[5] = 1 end
if not mine then done[5] = 2 * done[5] end
return done
