-- Write a change into the room's journal: a stream capped at about 10,000 entries.
local function note(room, event, ...)
  redis.call('XADD', room.prefix .. 'journal', 'MAXLEN', '~', 10000, '*', 'event', event, ...)
end
