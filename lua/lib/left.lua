-- Milliseconds until an expiry; 0 when it is over. One further away than its own length was written before
-- the clock was set back: it is over too (rule 2).
local function time_left(room, expiry, length)
  local left = (tonumber(expiry or 0) or 0) - room.ms
  if left > 0 and left <= (tonumber(length or 0) or 0) then return left end
  return 0
end
