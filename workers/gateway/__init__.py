"""`greenroom serve`: one replica of a chat gateway, over HTTP. Needs the extra `gateway`.

`command` and `server` start and end it; `app` is its HTTP, `requests` what may be asked, `problems` what can go wrong,
`describe` the document of both. A `Gateway` takes a message and gives it a turn; an `Exchange` is what becomes of one
message, and a `Performance` how the agent is asked.
"""
