"""No key without an owner: what a test leaves in Redis has to stand in lua/README.md."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import fakeredis
import redis

_SCHEMA = Path(__file__).parents[2] / "lua" / "README.md"
_ROW = re.compile(r"^\| (`[^|]*`) \| ([a-z ]+?)(, TTL)? \|", re.MULTILINE)
#: Keys of the tests themselves: the clock that they move, what they wrote down.
_OURS = re.compile(r"greenroom:\{[^}]+\}:test:\w+")

#: Servers of the test that runs, and one that all tests share: it is looked at what a test leaves there.
watched: list[redis.Redis] = []
lasting: list[redis.Redis] = []


def fake(server: fakeredis.FakeServer | None = None) -> fakeredis.FakeRedis:
    """A fakeredis client that is watched."""
    client = fakeredis.FakeRedis(server=server or fakeredis.FakeServer())
    client.ping()  # two threads that come first at the same time would each get a database of their own
    watched.append(client)
    return client


@cache
def listed() -> dict[re.Pattern[str], tuple[str, bool]]:
    """Every key of the schema: its pattern, its type, and whether it has a time to live."""
    found = {}
    table = _SCHEMA.read_text().split("\n## ")[1]
    for names, kind, lasts in _ROW.findall(table):
        for name in re.findall(r"`([^`]+)`", names):
            pattern = re.sub(r"<\w+>", ".+", name)
            found[re.compile(rf"greenroom:\{{[A-Za-z0-9_.-]+\}}:{pattern}", re.DOTALL)] = (kind, bool(lasts))
    return found


def strays(client: redis.Redis) -> list[str]:
    """What stands in a Redis and has no owner, each with what is wrong about it."""
    found: list[str] = []
    try:
        names = list(client.scan_iter(count=1000))
    except redis.ConnectionError:  # the test cut it off for good
        return found
    for raw in names:
        key, kind, lasts = raw.decode(errors="replace"), _kind(client.type(raw)), client.pttl(raw)
        if _OURS.fullmatch(key) or kind == "none":
            continue
        owner = next((about for pattern, about in listed().items() if pattern.fullmatch(key)), None)
        if owner is None:
            found.append(f"{key} is not in lua/README.md" + (" and has no TTL" if lasts == -1 else ""))
        elif owner[0] != kind:
            found.append(f"{key} is a {kind}, in lua/README.md a {owner[0]}")
        elif owner[1] and lasts == -1:
            found.append(f"{key} has no TTL, in lua/README.md it has")
    return found


def _kind(raw: Any) -> str:
    return {"zset": "sorted set"}.get(raw.decode(), raw.decode())
