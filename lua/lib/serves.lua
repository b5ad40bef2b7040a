-- include: lib/alive

-- Where a worker can be reached, if it takes sessions: it is up, and its heartbeat lasts.
local function serves(room, worker)
  local about = redis.call('HMGET', room.prefix .. 'worker:' .. worker, 'state', 'address', 'cap')
  if about[1] == 'up' and is_alive(room, worker) then return about[2], tonumber(about[3]) end
end
