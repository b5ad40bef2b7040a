-- Set a key that lasts for so many milliseconds; `...` goes to SET ('NX'). With `last_for` the only places that give a
-- time to live.
local function set_for(room, key, value, ms, ...)
  return redis.call('SET', room.prefix .. key, value, 'PX', ms, ...)
end
