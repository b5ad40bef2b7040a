-- include: lib/batch
-- include: lib/caps

-- After a commit, an end or an abandon: the worker's cap, then the room's; `own_…` are the caller's limits. Returns
-- how far over a cap the room is, if that is news, and 1 if there is more to look at than a call may.
local function enforce_caps(room, worker, own_worker, own_room)
  local set = redis.call('HMGET', room.prefix .. 'settings', 'worker', 'room')
  local dropped, held, held_from = enforce_cap(room, 'held:' .. worker, tonumber(set[1] or own_worker), 0, BATCH)
  local _, all, lru_from = enforce_cap(room, 'lru', tonumber(set[2] or own_room), 0, BATCH - dropped)
  return math.max(held, all), (held_from or lru_from) and 1 or 0
end
