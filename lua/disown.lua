-- Reconcile, second pass (rule 14): what Redis says a worker holds and it does not. Only the same generation, and
-- nothing mid-turn: what came since is not ours to drop.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 worker  then session, generation … : at most BATCH pairs
-- Returns  how many were dropped
-- Events   'lost'
-- include: lib/drop
-- include: lib/lease
-- include: lib/record
-- include: lib/room
local room = this_room(KEYS[1])
local dropped = 0
for i = 2, #ARGV, 2 do
  local record = read_record(room, ARGV[i])
  if record.worker == ARGV[1] and record.generation == ARGV[i + 1] and lease_left(room, ARGV[i], record) == 0 then
    drop_copy(room, ARGV[i], record, 'soft', 'lost')
    dropped = dropped + 1
  end
end
return dropped
