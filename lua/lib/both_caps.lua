-- include: lib/caps

-- After a commit or an end: the worker's cap, then the room's. `own` are the caller's limits, for the worker
-- and the room. Returns how far over a cap the room is, if that is news.
local function enforce_caps(room, worker, own_worker, own_room)
  local set = redis.call('HMGET', room.prefix .. 'settings', 'worker', 'room')
  local dropped, held = enforce_cap(room, 'held:' .. worker, tonumber(set[1] or own_worker), 0, 64)
  local _, all = enforce_cap(room, 'lru', tonumber(set[2] or own_room), 0, 64 - dropped)
  return math.max(held, all)
end
