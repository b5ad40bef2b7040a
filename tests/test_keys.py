"""The watch over the keys that tests leave behind: it sees what it is there for."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from support.keys import listed, strays

from coordinator.keys import Keys


def test_the_whole_schema_is_read() -> None:
    lasting = [pattern.pattern for pattern, (_, lasts) in listed().items() if not lasts]
    assert len(listed()) == 26
    assert len(lasting) == 19


@pytest.mark.parametrize(("name", "value", "ttl", "wrong"), [
    ("counted:s", "1", None, ["greenroom:{room}:counted:s is not in lua/README.md and has no TTL"]),
    ("counted:s", "1", 9, ["greenroom:{room}:counted:s is not in lua/README.md"]),
    ("ended:t", "kept", None, ["greenroom:{room}:ended:t has no TTL, in lua/README.md it has"]),
    ("ended:t", "kept", 9, []),
    ("lru", "1", None, ["greenroom:{room}:lru is a string, in lua/README.md a sorted set"]),
    ("clock", "1", None, []),
    ("test:time", "1", None, []),
])  # fmt: skip
def test_a_stray_key_is_seen(client: redis.Redis, name: str, value: str, ttl: Any, wrong: list[str]) -> None:
    client.set(Keys("room").prefix + name, value, ex=ttl)
    assert strays(client) == wrong
    client.delete(Keys("room").prefix + name)


def test_a_key_outside_of_the_room_is_seen(client: redis.Redis) -> None:
    client.set("greenroom:room:lru", "1")
    assert strays(client) == ["greenroom:room:lru is not in lua/README.md and has no TTL"]
    client.delete("greenroom:room:lru")
