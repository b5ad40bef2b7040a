-- include: lib/tally

-- Count a turn that runs on a worker (1), or that does not any more (-1); and the agent that is built for it.
local function count_turn(room, worker, by, state)
  tally(room, 'turns', worker, by)
  if state == 'building' then tally(room, 'building', worker, by) end
end
