-- include: lib/left

-- Whether a worker's heartbeat lasts.
local function is_alive(room, worker)
  local beat = redis.call('ZSCORE', room.prefix .. 'workers', worker)
  return beat and time_left(room, beat, redis.call('HGET', room.prefix .. 'worker:' .. worker, 'lease')) > 0
end
