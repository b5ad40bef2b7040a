-- include: lib/batch
-- include: lib/join
-- include: lib/tick

-- Whether there is a place for one more in a line. Who stopped asking is taken out of a full one first.
local function is_full(room, key, turn, most)
  local line = room.prefix .. 'waiting:' .. key
  if redis.call('ZCARD', line) < most or redis.call('ZSCORE', line, turn) then return false end
  for _, waiter in ipairs(redis.call('ZRANGE', line, 0, BATCH - 1)) do
    if redis.call('EXISTS', room.prefix .. 'waiter:' .. waiter) == 0 then redis.call('ZREM', line, waiter) end
  end
  return redis.call('ZCARD', line) >= most
end

-- A turn that cannot begin takes a place in line, if it wants one and there is one, and hears who is in the way and how
-- many are before it. `asked`: names turn worker queue most floor, as in begin; `number` is a fence or a generation.
local function busy(room, asked, why, who, left, since, number)
  local waits = asked.queue > 0
  for _, name in ipairs(waits and asked.most > 0 and asked.names or {}) do
    if is_full(room, name, asked.turn, asked.most) then
      waits, why = false, 'full'
      break
    end
  end
  if waits then join_queue(room, asked.names, asked.turn, asked.worker, asked.queue, next_tick(room, asked.floor)) end
  local ahead = 0
  for _, name in ipairs(asked.names) do
    local line = room.prefix .. 'waiting:' .. name
    ahead = math.max(ahead, waits and redis.call('ZRANK', line, asked.turn) or redis.call('ZCARD', line))
  end
  return { 'busy', why, who, left, since and room.ms - since or 0, ahead, number or '0' }
end
