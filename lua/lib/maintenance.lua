-- include: lib/batch
-- include: lib/drop
-- include: lib/ending_of
-- include: lib/lease_on
-- include: lib/lease
-- include: lib/record
-- include: lib/remove_worker

-- Leases that ran out, and those further away than any lease (the clock was set back): their copies are doomed.
-- Returns how many were, and how many names were looked at.
local function reap_leases(room, budget)
  local leases, lost = room.prefix .. 'leases', 0
  local function settle(key)
    local whose, doomed = lease_on(room, key)
    if not whose and doomed then lost = lost + 1 end
  end
  local now = string.format('%.0f', room.ms)
  local over = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, budget)
  for _, key in ipairs(over) do settle(key) end
  for _, key in ipairs(redis.call('ZREVRANGE', leases, 0, 3)) do settle(key) end
  return lost, #over
end

-- Workers whose heartbeat is over: their idle copies go; those mid-turn wait for their leases to run out. A
-- heartbeat further away than its length was written before the clock was set back: it gets one length more. Who asks
-- (`caller`) is not dead, whatever became of its beat.
local function reap_workers(room, caller, budget)
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
    for _, session in ipairs(worker ~= caller and redis.call('ZRANGE', held, 0, budget - dropped - 1) or {}) do
      local record = read_record(room, session)
      if record.worker ~= worker then
        redis.call('ZREM', held, session)
      elseif lease_left(room, session, record) == 0 then
        drop_copy(room, session, record, 'soft', 'dead')
        dropped = dropped + 1
      end
    end
    if worker ~= caller and redis.call('ZCARD', held) == 0 then
      remove_worker(room, worker, 'dead')
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

-- Ends of sessions that are this worker's to carry out and, if it `adopts`, those left to nobody or to one that is
-- dead: about BATCH of them, or all where Redis keeps so few in one piece. Returns them, and where to go on from ('0':
-- all were looked at).
local function take_endings(room, worker, adopts, cursor)
  local taken, page = {}, redis.call('HSCAN', room.prefix .. 'closing', cursor, 'COUNT', BATCH)
  for i = 1, #page[2], 2 do
    local session = page[2][i]
    local owner, generation = ending_of(room, session, adopts and worker or '')
    if owner == worker then
      taken[#taken + 1] = session
      taken[#taken + 1] = generation
    end
  end
  return taken, page[1]
end
