-- The session is over: `worker` ('': whoever comes first) is to carry out its end, before its new life (rule 11a).
-- Until that is reported it stands in `closing`, known by `generation`: the copy's, or a tick where there was none.
local function order_ending(room, session, worker, generation)
  redis.call('DEL', room.prefix .. 'snapshot:' .. session)
  redis.call('HSET', room.prefix .. 'closing', session, worker .. ' ' .. generation)
end
