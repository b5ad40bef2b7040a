-- Count one more (1) or one less (-1) of a worker's `turns`, or of the agents that are `building` there.
local function count(room, what, worker, by)
  local key = room.prefix .. what
  if tonumber(redis.call('ZINCRBY', key, by, worker)) <= 0 then redis.call('ZREM', key, worker) end
end

-- The same for a turn, and for the agent that is built for it.
local function count_turn(room, worker, by, state)
  count(room, 'turns', worker, by)
  if state == 'building' then count(room, 'building', worker, by) end
end
