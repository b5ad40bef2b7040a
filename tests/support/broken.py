"""Rules broken on purpose: with one of these in the scripts, the tests of that rule must go red."""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.scripts import Script
from support import movable


@dataclass(frozen=True, slots=True)
class Break:
    """In this Lua file, `old` becomes `new`."""

    file: str
    old: str
    new: str


_TOLD = "if redis.call('HSETNX', over, index, beyond) == 0 then"
_HIT = "record.state == 'live' and mine and record.generation == generation and record.signature == signature"
_ADOPTED = """generation ~= '0'
if hit then
  record.generation = generation
  redis.call('HSET', prefix .. 'session:' .. session, 'worker', worker, 'generation', generation)
end"""
_ALL_GO = """redis.call('DEL', prefix .. 'session:' .. session)
  for _, other in ipairs(redis.call('ZRANGE', prefix .. 'lru', 0, -1)) do
    redis.call('DEL', prefix .. 'session:' .. other)
  end"""
_COUNTED = """if not hit then redis.call('ZADD', prefix .. 'lru', fence, session) end
if queued then"""

RULES = {
    "the newest goes": Break("lib/caps", "('ZRANGE', key, at", "('ZREVRANGE', key, at"),
    "no cap": Break("lib/caps", "if excess <= 0 then", "if true then"),
    "one too many": Break("lib/caps", "('ZCARD', key) - cap or 0", "('ZCARD', key) - cap - 1 or 0"),
    "a cap where none is set": Break("lib/caps", "local excess =", "cap = cap or 8\n  local excess ="),
    "a victim is replaced": Break("lib/caps", "        at = at + 1\n", "        at, excess = at + 1, excess + 1\n"),
    "victims mid-turn": Break("lib/caps", "if held and redis.call(", "if false and redis.call("),
    "told every time": Break("lib/caps", _TOLD, "if false then"),
    "told never": Break("lib/caps", _TOLD, "if true then"),
    "caps evict hard": Break("lib/caps", "record, 'soft', record.turn", "record, 'hard', record.turn"),
    "an end enforces nothing": Break("end", "enforce_caps(room, record.worker, ARGV[5], ARGV[6])", "0, 0"),
    "an end does not touch": Break("end", "redis.call('ZADD', prefix .. 'lru', tick, session)", "local _ = tick"),
    "an end evicts nothing": Break("end", "record.evict or ARGV[4]", "''"),
    "a build counts at once": Break("begin", "if queued then", _COUNTED),
    "idle time counts for all": Break("end", "if ARGV[3] == '1' then", "if true then"),
    "idle mid-turn": Break("lib/grant", "redis.call('ZREM', prefix .. 'activity', session)", ""),
    "the sweep takes all": Break("lib/maintenance", "string.format('(%.0f', room.ms - ttl)", "'+inf'"),
    "the sweep takes none": Break("lib/maintenance", "string.format('(%.0f', room.ms - ttl)", "'-inf'"),
    "an eviction does not wait": Break("lib/evict", "if lease_left(room, session, record) == 0 then", "if true then"),
    "an eviction takes all": Break("lib/drop", "redis.call('DEL', prefix .. 'session:' .. session)", _ALL_GO),
    "any signature will do": Break("begin", " and record.signature == signature\n", "\n"),
    "nothing is ever warm": Break("begin", "local hit = record.state == 'live'", "local hit = record.state == ''"),
    "stale agents are warm": Break("begin", _HIT, _ADOPTED),
    "nobody is busy": Break("lib/lease_on", "then return session, record, left end", "then return end"),
    "a lease for ever": Break("lib/left", "if left > 0 and", "if expiry then return 1 end\n  if left > 0 and"),
    "any turn may end": Break("lib/turn", "if record.turn ~= turn then return nil end", ""),
    "lease keys do not count": Break("begin", "= room.prefix, { session, key }", "= room.prefix, { session }"),
    "soft is hard": Break("lib/drop", "  local prefix = room.prefix\n", "  local prefix, mode = room.prefix, 'hard'\n"),
    "hard is soft": Break("evict", "caller, prefix = ARGV[1], ARGV[2]", "caller, prefix = ARGV[1], 'soft'"),
    "nobody takes endings over": Break("maintain", "endings, cursor = take_endings(room, worker, mine, ARGV[9])", ""),
    "a lease stays where it was": Break("rebind", "if record.key then", "if false then"),
    "no snapshot": Break("lib/snapshot", "if data == '' then return end", "if data then return end"),
}  # fmt: skip

#: For controls that break something in Python instead.
NONE = "no rule of Lua's"


def scripts(rule: str = "") -> dict[str, Script]:
    """The scripts with a clock that can be moved, and one rule broken."""
    if not rule or rule == NONE:
        return movable()
    broken = RULES[rule]

    def change(file: str, body: str) -> str:
        if file != broken.file:
            return body
        assert broken.old in body, f"the negative control {rule!r} does not fit {file}.lua any more"
        return body.replace(broken.old, broken.new)

    return movable(change)
