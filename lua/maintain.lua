-- Maintenance, a bounded batch of it (rule 13): expired leases, dead workers, idle sessions, caps. No leader does it:
-- it rides on the workers' beats, at most one a second.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 steps: 'all' | 'reap' | 'sweep'  2 worker that does it ('': nobody's beat)  3 '1': one a second
--          4 idle time to live, ms ('': none)  5 cap for the worker ('': none)  6 cap for the room
--          7 offset of the worker's cap, 8 of the room's: where the last call left off
-- Returns  {lost, gone, idle, capped, more, over, offset 7, offset 8, session, generation …} : how many leases had run
--          out, workers were dead, sessions idle, copies above a cap; '1' when there is more to do; how far over a cap;
--          then the sessions whose hard close was left to a worker that is gone: the caller ends them
-- Events   'lost', 'evicted', 'gone', 'over-cap'
-- include: lib/caps
-- include: lib/full
-- include: lib/maintenance
-- include: lib/room
local room = open_room(KEYS[1])
open_when_full(room)
local steps, worker, prefix = ARGV[1], ARGV[2], KEYS[1]
local set = redis.call('HMGET', prefix .. 'settings', 'idle_ttl', 'worker', 'room')
local done = { 0, 0, 0, 0, 0, 0, 0, 0 }
local all = steps == 'all'

local function cap(index, limit, slot)
  local dropped, over, offset = enforce_cap(room, index, limit, tonumber(ARGV[slot]))
  done[4] = done[4] + dropped
  done[6] = math.max(done[6], over)
  done[slot] = offset or 0
  if offset then done[5] = 1 end
  if limit and redis.call('ZCARD', prefix .. index) <= limit then redis.call('HDEL', prefix .. 'over', index) end
end

if all and worker ~= '' then cap('held:' .. worker, tonumber(set[2] or ARGV[5]), 7) end
if ARGV[3] == '1' and not redis.call('SET', prefix .. 'maintenance', worker, 'NX', 'PX', 1000) then return done end

local budget = 64
if steps ~= 'sweep' then
  done[1] = reap_leases(room, budget)
  budget = budget - done[1]
  local dropped
  done[2], dropped = reap_workers(room, budget)
  budget = budget - dropped
end
if steps ~= 'reap' then
  done[3] = sweep_idle(room, tonumber(set[1] or ARGV[4]), budget)
  budget = budget - done[3]
end
if budget <= 0 then
  done[5] = 1
elseif all then
  cap('lru', tonumber(set[3] or ARGV[6]), 8)
  if worker ~= '' then take_endings(room, worker, done) end
end
return done
