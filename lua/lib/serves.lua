-- include: lib/alive

-- Where a worker can be reached, if it takes sessions: it is up, and its heartbeat lasts.
local function serves(room, worker)
  local about = redis.call('HMGET', room.prefix .. 'worker:' .. worker, 'state', 'address', 'instance', 'cap')
  if about[1] ~= 'up' or not is_alive(room, worker) then return nil end
  return { address = about[2], instance = about[3], cap = tonumber(about[4]) }
end
