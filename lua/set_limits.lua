-- Set the room's limits, for all workers and at once (rule 18).
--
-- KEYS[1]  the room's prefix
-- ARGV     then name, value … : at most 4 pairs: room, worker, idle_ttl (ms), memory (bytes); value 'none': no limit,
--          '': back to what each worker was started with
-- Returns  1
-- Events   'limits'
-- include: lib/journal
-- include: lib/room
local room = this_room(KEYS[1])
for i = 1, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', KEYS[1] .. 'settings', ARGV[i])
  else
    redis.call('HSET', KEYS[1] .. 'settings', ARGV[i], ARGV[i + 1])
  end
end
note(room, 'limits', unpack(ARGV))
return 1
