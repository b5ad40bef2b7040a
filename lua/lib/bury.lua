-- include: lib/grace
-- include: lib/set_for

-- What goes while owners still re-assert what they held must not be re-asserted: remember for as long as grace lasts
-- that what was last used at `fence` or before is gone.
local function bury(room, session, fence)
  local left = grace_left(room)
  if left > 0 then set_for(room, 'gone:' .. session, fence, left) end
end
