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


# The scripts read the time in one place, and give a time to live in two. In tests the first asks a key: the time can be
# moved, or set. The others write down when a key is over by that time, in `test:lasts`; whatever reads the time next
# removes it. (Redis's own clock has no part in it: a key's real time to live only says that it has one.)
_TIME = "redis.call('TIME')"
_MOVED = """(function()
    local set, time = redis.call('GET', prefix .. 'test:time')
    if set then
      time = { math.floor(set / 1000000), set % 1000000 }
    else
      time = redis.call('TIME')
      time[1] = time[1] + tonumber(redis.call('GET', prefix .. 'test:offset') or 0)
    end
    local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
    for _, key in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'test:lasts', '-inf', now)) do
      redis.call('DEL', prefix .. key)
      redis.call('ZREM', prefix .. 'test:lasts', key)
    end
    return time
  end)()"""
_DAYS = 10 * 86_400_000
_LASTING = {
    "lib/set_for": f"""local function set_for(room, key, value, ms, ...)
  local done = redis.call('SET', room.prefix .. key, value, 'PX', {_DAYS}, ...)
  if done then redis.call('ZADD', room.prefix .. 'test:lasts', string.format('%.0f', room.ms + ms), key) end
  return done
end
""",
    "lib/last_for": f"""local function last_for(room, key, ms)
  local anew = redis.call('PTTL', room.prefix .. key) < 0
  local before = not anew and redis.call('ZSCORE', room.prefix .. 'test:lasts', key)
  if before and tonumber(before) >= room.ms + ms then return end
  redis.call('ZADD', room.prefix .. 'test:lasts', string.format('%.0f', room.ms + ms), key)
  redis.call('PEXPIRE', room.prefix .. key, {_DAYS})
end
""",
}


def movable(change: Callable[[str, str], str] | None = None) -> dict[str, Script]:
    """The scripts with a clock that tests can move, and with another change to their text if wanted."""

    def edit(path: str, body: str) -> str:
        if path == "lib/room":
            assert _TIME in body
            body = body.replace(_TIME, _MOVED)
        body = _LASTING.get(path, body)
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
