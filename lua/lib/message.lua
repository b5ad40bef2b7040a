-- Tell a worker something about a session, on its channel. `detail` is a generation (evictions, interrupts) or
-- a turn id (wakes). A hint only: whoever misses it finds out at the next reconcile or poll.
local function send(room, worker, session, mode, name, detail, reason)
  local message = '{"v":1,"session":' .. cjson.encode(session) .. ',"' .. name .. '":' .. cjson.encode(detail)
    .. ',"mode":"' .. mode .. '"' .. (reason and ',"reason":"' .. reason .. '"}' or '}')
  redis.call('PUBLISH', room.prefix .. 'evict:' .. worker, message)
end
