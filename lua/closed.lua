-- Hard closes and session ends that were carried out.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 worker  then session, generation … as in `closing` ('0': there was no copy)
-- Returns  how many were still open
local closed = 0
for i = 2, #ARGV, 2 do
  if redis.call('HGET', KEYS[1] .. 'closing', ARGV[i]) == ARGV[1] .. ' ' .. ARGV[i + 1] then
    closed = closed + redis.call('HDEL', KEYS[1] .. 'closing', ARGV[i])
  end
end
return closed
