-- The room a script works in: the prefix of its keys, and Redis's own time (rule 1: no other clock counts).
local function this_room(prefix)
  local time = redis.call('TIME')
  local us = time[1] * 1000000 + time[2]
  return { prefix = prefix, us = us, ms = math.floor(us / 1000) }
end
