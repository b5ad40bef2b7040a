-- include: lib/serves

-- Where a session goes that nobody holds: to the worker with most room under its cap (what is being built there takes
-- some, too), then to the one with the fewest turns. Looks at the eight with the latest heartbeats and at `asking`,
-- which also wins a tie, but at none that is in `but`, which has a space around each. nil: none takes it.
local function place_session(room, asking, but)
  local names = redis.call('ZREVRANGE', room.prefix .. 'workers', 0, 7)
  local set = redis.call('HGET', room.prefix .. 'settings', 'worker')
  local best, where, most, fewest
  local function look_at(worker, wins_tie)
    local there = serves(room, worker)
    if not there or (there.address == '' and worker ~= asking) then return end
    if string.find(but, ' ' .. worker .. ' ', 1, true) then return end
    local cap = there.cap
    if set then cap = tonumber(set) end
    local function counted(what) return tonumber(redis.call('ZSCORE', room.prefix .. what, worker) or 0) end
    local free = (cap or 2 ^ 40) - redis.call('ZCARD', room.prefix .. 'held:' .. worker) - counted('building')
    local turns = counted('turns')
    local tie = best and free == most and turns == fewest
    if not best or free > most or (free == most and turns < fewest) or (tie and wins_tie) then
      best, where, most, fewest = worker, there, free, turns
    end
  end
  for i = 1, #names do look_at(names[(i + room.us) % #names + 1], false) end
  look_at(asking, true)
  return best, where
end
