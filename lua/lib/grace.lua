-- include: lib/left

-- Milliseconds of grace left after the room's state was lost (rule 15): owners re-assert what they hold meanwhile.
local function grace_left(room)
  local grace = redis.call('GET', room.prefix .. 'grace')
  if not grace then return 0 end
  local expiry, length = string.match(grace, '^(%d+) (%d+)$')
  return time_left(room, expiry, length)
end
