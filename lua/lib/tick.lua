-- The next tick of the room: later than every tick given out, than every fence the caller has seen
-- (`floor`), and no earlier than now in microseconds. As text: `tostring` would round it.
local function next_tick(room, floor)
  local last = tonumber(redis.call('GET', room.prefix .. 'clock') or 0)
  local tick = string.format('%.0f', math.max(last + 1, room.us, (floor or 0) + 1))
  redis.call('SET', room.prefix .. 'clock', tick)
  return tick
end
