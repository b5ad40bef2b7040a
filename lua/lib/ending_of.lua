-- include: lib/alive

-- Who carries out the end of a session, and its generation; nil: there is none to be carried out. What was left to
-- nobody, or to a worker that is dead, falls to `worker` ('': to nobody yet).
local function ending_of(room, session, worker)
  local closing = room.prefix .. 'closing'
  local owner, generation = string.match(redis.call('HGET', closing, session) or '', '^(%S*) (%d+)$')
  if owner and owner ~= worker and worker ~= '' and not is_alive(room, owner) then
    owner = worker
    redis.call('HSET', closing, session, owner .. ' ' .. generation)
  end
  return owner, generation
end
