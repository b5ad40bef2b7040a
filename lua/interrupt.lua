-- Ask the turn that runs on a session to stop, wherever it runs.
--
-- KEYS[1]  the room's prefix
-- ARGV     1 session  2 fence: of the turn that is meant ('': whichever runs)
-- Returns  the worker it runs on, or '' when no such turn runs
-- include: lib/lease
-- include: lib/message
-- include: lib/record
-- include: lib/room
local room = this_room(KEYS[1])
local record = read_record(room, ARGV[1])
if lease_left(room, ARGV[1], record) == 0 or (ARGV[2] ~= '' and ARGV[2] ~= record.fence) then return '' end
send(room, record.worker, ARGV[1], 'interrupt', 'fence', record.fence)
return record.worker
