-- A delivery can be asked for by more than one worker: by the one that it was passed to, and by the one that passed it
-- on and heard nothing. It begins with the time, 12 hex digits of ms, and may get a turn for so long; which turn it got
-- is known for longer than that, so that however late a worker asks, it gets no second one.
local DELIVERY_MS = 60000
