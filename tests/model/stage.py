"""The room under test: the real scripts on a server, with a clock that stands still until it is set.

One round trip reads the whole key space back; what the scripts published is read with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import redis
from support import movable

from coordinator.codec import text
from coordinator.link import SyncLink, run
from coordinator.scripts import Script
from coordinator.settings import Settings

#: Messages are written down as well: a subscriber would see them too late to compare them step by step.
_PUBLISH = "redis.call('PUBLISH', room.prefix .. 'evict:' .. worker, message)"
_WRITTEN = "\n  redis.call('RPUSH', room.prefix .. 'test:sent', worker, message)"

_READ = """
local keys = {}
for _, key in ipairs(redis.call('KEYS', KEYS[1] .. '*')) do
  local kind, value = redis.call('TYPE', key)
  kind = type(kind) == 'table' and kind.ok or kind
  if kind == 'string' then value = redis.call('GET', key)
  elseif kind == 'hash' then value = redis.call('HGETALL', key)
  elseif kind == 'zset' then value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'stream' then value = redis.call('XRANGE', key, '-', '+') end
  keys[#keys + 1] = { string.sub(key, #KEYS[1] + 1), kind, value }
end
redis.call('DEL', KEYS[1] .. 'test:sent')
return keys
"""
#: How a script sees the room between two seconds of maintenance is set by the machine; test:* is the tests' own.
_NOT_COMPARED = ("maintenance", "test:time")

Change = Callable[[str, str], str]

#: Rules the scripts do not keep yet, with the text that would make them: (file, text, instead). Empty this table.
PENDING = (
    (  # rule 11: a hard eviction deletes the snapshot, also one that a failed build carries out
        "abandon",
        "    if mode == 'hard' then\n      redis.call('HSET'",
        """    if mode == 'hard' then
      redis.call('DEL', prefix .. 'snapshot:' .. session)
      redis.call('HSET'""",
    ),
    (  # rule 9: a lease key that is freed alone lets a later turn take it, and the doomed one then frees *that* lease
        "lib/maintenance",
        """      if not session or lease_left(room, session, read_record(room, session)) == 0 then
        redis.call('ZREM', leases, key)""",
        """      record = session and read_record(room, session) or {}
      if record.turn and lease_left(room, session, record) == 0 then
        drop_copy(room, session, record, 'soft', 'lost')
        lost = lost + 1
      elseif not record.turn then
        redis.call('ZREM', leases, key)""",
    ),
    (  # B24: an episode over the cap is over once the index is found within it, or the next one is never told
        "lib/caps",
        "  if excess <= 0 then return 0, 0, nil end",
        """  if excess <= 0 then
    if cap then redis.call('HDEL', room.prefix .. 'over', index) end
    return 0, 0, nil
  end""",
    ),
    (  # rule 5: every end enforces the caps
        "end",
        "  wanted = mode .. ' ' .. reason\n",
        "  wanted = mode .. ' ' .. reason\n  enforce_caps(room, record.worker, ARGV[5], ARGV[6])\n",
    ),
    (  # rule 6: a turn that is over cannot be re-asserted by a claim that was on its way
        "claim",
        "  local record = read_record(room, session)\n  if record.worker then\n",
        """  if turn ~= '' and redis.call('EXISTS', prefix .. 'ended:' .. turn) == 1 then return 'soft' end
  local record = read_record(room, session)
  if record.worker then
""",
    ),
)


def library(change: Change | None = None, pending: Sequence[tuple[str, str, str]] = PENDING) -> dict[str, Script]:
    """The scripts as the machine runs them; `change` breaks a rule on purpose."""

    def edit(path: str, body: str) -> str:
        for file, old, new in pending:
            if file == path and new not in body:
                body = body.replace(old, new)
        if path == "lib/message":
            assert _PUBLISH in body
            body = body.replace(_PUBLISH, _PUBLISH + _WRITTEN)
        return change(path, body) if change else body

    return movable(edit)


class Stage:
    """One room for many examples: each starts with `clear`."""

    def __init__(self, source: Any, client: redis.Redis, room: str, scripts: Mapping[str, Script]) -> None:
        self.link = SyncLink(Settings(redis=source, room=room), scripts)
        self.prefix = self.link.keys.prefix
        self._client = client
        self._read = client.register_script(_READ)

    def close(self) -> None:
        self.clear()
        run(self.link.close())

    def clear(self) -> None:
        """The room's state is lost."""
        if keys := self._client.keys(self.prefix + "*"):
            self._client.delete(*keys)

    def set_time(self, now: int) -> None:
        self._client.set(self.prefix + "test:time", now)

    def forget(self, key: str) -> None:
        """As if the key's time to live were over."""
        self._client.delete(self.prefix + key)

    def put(self, key: str, value: str) -> None:
        self._client.set(self.prefix + key, value)

    def look(self) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
        """The key space, in the form of the model's, and what was sent since the last look, sorted."""
        keys: dict[str, Any] = {}
        sent: list[tuple[str, ...]] = []
        for name, kind, value in self._read(keys=[self.prefix]):
            key = text(name)
            if key == "test:sent":
                sent = sorted(_message(*value[i : i + 2]) for i in range(0, len(value), 2))
            elif key not in _NOT_COMPARED:
                keys[key] = _READERS[text(kind)](value)
        return keys, sent


def _pairs(flat: list[bytes]) -> dict[str, str]:
    return {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat), 2)}


def _journal(entries: list[Any]) -> list[tuple[str, str, str]]:
    found = []
    for _, flat in entries:
        entry = _pairs(flat)
        if entry["event"] == "limits":  # its fields are limits, not names
            entry = {"event": "limits"}
        whose = entry.get("session") or entry.get("worker") or entry.get("index", "")
        found.append((entry["event"], whose, entry.get("reason", "")))
    return found


def _message(worker: bytes, message: bytes) -> tuple[str, ...]:
    said = json.loads(message)
    assert said.pop("v") == 1
    detail = next(said[name] for name in ("generation", "fence", "turn", "worker") if name in said)
    return text(worker), said["mode"], said["session"], detail


_READERS: dict[str, Callable[[Any], Any]] = {
    "string": text,
    "hash": _pairs,
    "zset": lambda flat: {name: int(float(score)) for name, score in _pairs(flat).items()},
    "stream": _journal,
}
