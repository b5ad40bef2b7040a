-- What Redis knows of a session; a field that is not there is false, a session without a record has no worker.
local function read_record(room, session)
  local field = redis.call('HMGET', room.prefix .. 'session:' .. session,
    'worker', 'signature', 'generation', 'state', 'turn', 'fence', 'lease', 'since', 'key', 'evict')
  return {
    worker = field[1], signature = field[2], generation = field[3], state = field[4], turn = field[5],
    fence = field[6], lease = field[7], since = field[8], key = field[9], evict = field[10],
  }
end
