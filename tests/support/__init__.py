"""What the tests share: servers, a clock that can be moved, waiting for a condition."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from coordinator.scripts import NAMES, Script, load


def wait_until(condition: Callable[[], Any], seconds: float = 10.0, what: str = "condition") -> Any:
    """Poll until a condition holds, and give its value; fail after a deadline."""
    deadline = time.monotonic() + seconds
    while True:
        if value := condition():
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        time.sleep(0.005)


def no_server() -> Any:
    """Without a redis-server the real half is skipped at home, and fails in CI."""
    message = "NO redis-server: the half of the tests that needs a real one does not run"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


# The scripts read the time in one place. In tests that place asks a key first: the time can be moved, or set.
_TIME = "redis.call('TIME')"
_MOVED = """(function()
    local set = redis.call('GET', prefix .. 'test:time')
    if set then return { math.floor(set / 1000000), set % 1000000 } end
    local time, offset = redis.call('TIME'), tonumber(redis.call('GET', prefix .. 'test:offset') or 0)
    return { time[1] + offset, time[2] }
  end)()"""


def movable(change: Callable[[str, str], str] | None = None) -> dict[str, Script]:
    """The scripts with a clock that tests can move, and with another change to their text if wanted."""

    def edit(path: str, body: str) -> str:
        if path == "lib/room":
            assert _TIME in body
            body = body.replace(_TIME, _MOVED)
        return change(path, body) if change else body

    return {name: load(name, edit) for name in NAMES}


class Clock:
    """Moves the time that a room's scripts see."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client, self._prefix = client, prefix

    def advance(self, seconds: int) -> None:
        """Add whole seconds to Redis's time, for this room."""
        self._client.incrby(self._prefix + "test:offset", seconds)

    def set(self, microseconds: int) -> None:
        """Stop the room's time at a moment."""
        self._client.set(self._prefix + "test:time", microseconds)
