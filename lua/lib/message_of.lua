-- The message that a turn is for, and which delivery of it ('': only this turn's), if its worker said so: the turn's id
-- is then `<worker>/<number>/<delivery>/<message>`, else `<worker>/<number>`. One message gets one turn (H18).
local function message_of(turn)
  local delivery, message = string.match(turn or '', '^[^/]+/[^/]+/([^/]*)/([^/]+)$')
  return message, delivery
end
