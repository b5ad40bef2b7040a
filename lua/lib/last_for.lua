-- Let a key last for so many milliseconds at least.
local function last_for(room, key, ms)
  key = room.prefix .. key
  if redis.call('PTTL', key) < tonumber(ms) then redis.call('PEXPIRE', key, ms) end
end
