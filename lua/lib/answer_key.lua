-- Where it stands what became of a session's message: `turn`, which it has or had, and `answer` once that ended well.
local function answer_key(session, message)
  return 'answer:' .. session .. ':' .. message
end
