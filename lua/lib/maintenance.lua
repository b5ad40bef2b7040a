-- include: lib/drop
-- include: lib/journal
-- include: lib/lease
-- include: lib/left
-- include: lib/record

-- Leases that ran out, and those further away than any lease (the clock was set back): their copies are doomed.
-- Returns how many were, and how many names were looked at.
local function reap_leases(room, budget)
  local leases, lost = room.prefix .. 'leases', 0
  local function settle(key)
    local session, record = key, read_record(room, key)
    if not record.turn then
      session = redis.call('HGET', room.prefix .. 'aliases', key)
      record = session and read_record(room, session) or {}
    end
    if not record.turn then
      redis.call('ZREM', leases, key)
      redis.call('HDEL', room.prefix .. 'aliases', key)
    elseif lease_left(room, session, record) == 0 then
      drop_copy(room, session, record, 'soft', 'lost')
      lost = lost + 1
    end
  end
  local now = string.format('%.0f', room.ms)
  local over = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, budget)
  for _, key in ipairs(over) do settle(key) end
  for _, key in ipairs(redis.call('ZREVRANGE', leases, 0, 3)) do settle(key) end
  return lost, #over
end

-- Workers whose heartbeat is over: their idle copies go; those mid-turn wait for their leases to run out. A
-- heartbeat further away than its length was written before the clock was set back: it gets one length more.
local function reap_workers(room, budget)
  if budget <= 0 then return 0, 0 end
  local workers, now = room.prefix .. 'workers', string.format('%.0f', room.ms)
  local gone, dropped = 0, 0
  for _, worker in ipairs(redis.call('ZREVRANGE', workers, 0, 3)) do
    local length = tonumber(redis.call('HGET', room.prefix .. 'worker:' .. worker, 'lease') or 0)
    if redis.call('ZSCORE', workers, worker) - room.ms > length then
      redis.call('ZADD', workers, string.format('%.0f', room.ms + length), worker)
    end
  end
  for _, worker in ipairs(redis.call('ZRANGEBYSCORE', workers, '-inf', now, 'LIMIT', 0, 8)) do
    local held = room.prefix .. 'held:' .. worker
    for _, session in ipairs(redis.call('ZRANGE', held, 0, budget - dropped - 1)) do
      local record = read_record(room, session)
      if record.worker ~= worker then
        redis.call('ZREM', held, session)
      elseif lease_left(room, session, record) == 0 then
        drop_copy(room, session, record, 'soft', 'dead')
        dropped = dropped + 1
      end
    end
    if redis.call('ZCARD', held) == 0 then
      redis.call('ZREM', workers, worker)
      redis.call('DEL', room.prefix .. 'worker:' .. worker)
      redis.call('HDEL', room.prefix .. 'over', 'held:' .. worker)
      note(room, 'gone', 'worker', worker, 'reason', 'dead')
      gone = gone + 1
    end
    if dropped >= budget then break end
  end
  return gone, dropped
end

-- Sessions idle for longer than `ttl` ms. One that is mid-turn is not in `activity` at all.
local function sweep_idle(room, ttl, budget)
  if not ttl or budget <= 0 then return 0 end
  local until_ms = string.format('(%.0f', room.ms - ttl)
  local idle = redis.call('ZRANGEBYSCORE', room.prefix .. 'activity', '-inf', until_ms, 'LIMIT', 0, budget)
  for _, session in ipairs(idle) do
    drop_copy(room, session, read_record(room, session), 'soft', 'idle')
  end
  return #idle
end

-- Hard closes that are this worker's, or were left to one that is gone, a few at a time. It knows which it is at.
local function take_endings(room, worker, answer)
  local closing = room.prefix .. 'closing'
  if redis.call('HLEN', closing) == 0 then return end
  local page = redis.call('HRANDFIELD', closing, 16, 'WITHVALUES')
  for i = 1, #page, 2 do
    local owner, generation = string.match(page[i + 1], '^(%S*) (%d+)$')
    if owner == worker or not redis.call('ZSCORE', room.prefix .. 'workers', owner) then
      redis.call('HSET', closing, page[i], worker .. ' ' .. generation)
      answer[#answer + 1] = page[i]
      answer[#answer + 1] = generation
    end
  end
end
