-- include: lib/grace
-- include: lib/set_for

-- What goes while owners still re-assert what they held must not be re-asserted: remember for as long as grace lasts
-- that copies of this session up to a generation are gone, and how they went.
local function bury(room, session, mode, generation)
  local left = grace_left(room)
  if left > 0 then set_for(room, 'gone:' .. session, mode .. ' ' .. generation, left) end
end
