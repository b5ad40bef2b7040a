-- Count one more (1) or one less (-1) of a worker's `turns`, or of the agents that are `building` there.
local function tally(room, what, worker, by)
  local key = room.prefix .. what
  if tonumber(redis.call('ZINCRBY', key, by, worker)) <= 0 then redis.call('ZREM', key, worker) end
end
