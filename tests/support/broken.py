"""Rules broken on purpose: with one of these in the scripts, the tests of that rule must go red."""

from __future__ import annotations

from coordinator.scripts import Script
from support import movable

#: name → file, what stands there, what is put in its place
RULES = {
    "the newest goes": ("lib/caps", "redis.call('ZRANGE', key, offset, last - 1)", "redis.call('ZREVRANGE', key, offset, last - 1)"),
    "no cap": ("lib/caps", "if excess <= 0 then", "if true then"),
    "a cap where none is set": ("lib/caps", "local excess = cap and", "cap = cap or 8\n  local excess = cap and"),
    "a skipped victim is replaced": ("lib/caps", "local last = math.min(excess, offset + 64)", "local last = excess + 64"),
    "victims mid-turn": ("lib/caps", "if lease_left(room, session, record) == 0 then", "if true then"),
    "told every time": ("lib/caps", "if redis.call('HSETNX', room.prefix .. 'over', index, over) == 0 then", "if false then"),
    "told never": ("lib/caps", "if redis.call('HSETNX', room.prefix .. 'over', index, over) == 0 then", "if true then"),
    "an end enforces nothing": ("end", "enforce_caps(room, record.worker, ARGV[5], ARGV[6])", "0"),
    "an end does not touch": ("end", "redis.call('ZADD', prefix .. 'lru', tick, session)", "local _ = tick"),
    "caps evict hard": ("lib/caps", "record, 'soft', record.turn", "record, 'hard', record.turn"),
    "a build counts at once": (
        "begin",
        "if key then redis.call('HSET', name, 'key', key) end",
        "if not hit then redis.call('ZADD', prefix .. 'lru', fence, session) end\n"
        "if key then redis.call('HSET', name, 'key', key) end",
    ),
    "idle time counts for all": ("end", "if ARGV[3] == '1' then redis.call('ZADD'", "if true then redis.call('ZADD'"),
    "idle mid-turn": ("begin", "redis.call('ZREM', prefix .. 'activity', session)", ""),
    "the sweep takes all": ("lib/maintenance", "string.format('(%.0f', room.ms - ttl)", "'+inf'"),
    "an eviction does not wait": ("lib/evict", "if lease_left(room, session, record) == 0 then", "if true then"),
    "any signature will do": ("begin", " and record.signature == signature\n", "\n"),
    "nothing is ever warm": ("begin", "local hit = record.state == 'live'", "local hit = record.state == 'dead'"),
    "warm wherever it was used last": (
        "begin",
        "local hit = record.state == 'live' and mine and record.generation == generation and record.signature == signature",
        "local hit = generation ~= '0'\n"
        "if hit then record.generation = generation\n"
        "  redis.call('HSET', prefix .. 'session:' .. session, 'worker', worker, 'generation', generation) end",
    ),
    "evicted after is forgotten": ("end", "local wanted = record.evict or ARGV[4]", "local wanted = record.evict or ''"),
    "every message is for everybody": ("lib/drop", "redis.call('DEL', prefix .. 'session:' .. session)", "redis.call('DEL', prefix .. 'session:' .. session)\n  for _, other in ipairs(redis.call('ZRANGE', prefix .. 'lru', 0, -1)) do redis.call('DEL', prefix .. 'session:' .. other) end"),
    "a lease for ever": ("lib/left", "if left > 0 and left <= (tonumber(length or 0) or 0) then return left end", "if expiry then return 1 end"),
    "any turn may end": ("lib/turn", "if record.turn ~= turn then return nil end", ""),
    "lease keys do not count": ("begin", "for _, name in ipairs({ session, key }) do", "for _, name in ipairs({ session }) do"),
    "a hard close is for soft": ("lib/drop", "send(room, record.worker, session, mode,", "send(room, record.worker, session, 'hard',"),
    "nobody takes endings over": ("maintain", "if worker ~= '' then take_endings(room, worker, done) end", ""),
    "everybody ends the session": ("evict", "ARGV[4] .. ' 0') == 0 then", "ARGV[4] .. ' 0') == 2 then"),
}  # fmt: skip


def scripts(rule: str = "") -> dict[str, Script]:
    """The scripts with a clock that can be moved, and one rule broken."""
    if not rule:
        return movable()
    path, old, new = RULES[rule]

    def change(file: str, body: str) -> str:
        if file != path:
            return body
        assert old in body, f"the negative control {rule!r} does not fit {path}.lua any more"
        return body.replace(old, new)

    return movable(change)
