"""The room under test: the real scripts on a server, with a clock that stands still until it is set.

One round trip reads the whole key space back; what the scripts published is read with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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
#: Whose second of maintenance it is, the machine sets before each; test:* is the tests' own.
_NOT_COMPARED = ("maintenance", "test:time", "test:lasts")

Change = Callable[[str, str], str]


def library(change: Change | None = None) -> dict[str, Script]:
    """The scripts as the machine runs them; `change` breaks a rule on purpose."""

    def edit(path: str, body: str) -> str:
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
        run(self.link.disconnect())

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
        """As if a script had set it, to last."""
        self._client.zrem(self.prefix + "test:lasts", key)
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
