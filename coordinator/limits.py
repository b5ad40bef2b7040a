"""How much a room and a worker may hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_UNITS = {"": 1, "b": 1} | {
    name: base**power
    for power, letter in enumerate("kmgt", start=1)
    for name, base in ((letter + "b", 1000), (letter + "ib", 1024), (letter, 1024))
}


@dataclass(frozen=True, slots=True)
class Limits:
    """`room` and `worker` count agents, `idle_ttl` is in seconds, `memory` bounds a worker's resident bytes.

    None means no limit. What an operator sets for the room with `set_limits` goes before a worker's own.
    """

    room: int | None = None
    worker: int | None = None
    idle_ttl: float | None = None
    memory: int | str | None = None

    def __post_init__(self) -> None:
        _check("room", self.room, whole=True)
        _check("worker", self.worker, whole=True)
        _check("idle_ttl", self.idle_ttl)
        object.__setattr__(self, "memory", size(self.memory))


def size(value: int | str | None) -> int | None:
    """Bytes: a number, or text such as `4GiB`, `512MB`, `2g`."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        if not match or match[2].lower() not in _UNITS:
            raise ValueError(f"limit memory must be a size such as 4GiB or 512MB, not {ascii(value)[:40]}")
        value = int(min(float(match[1]) * _UNITS[match[2].lower()], 2**63))
    _check("memory", value, whole=True)
    return value


def size_text(value: int) -> str:
    """Bytes as text that `size` reads back, exactly."""
    power = 0
    while power < 4 and value % 1024 == 0 and value:
        value, power = value // 1024, power + 1
    return f"{value}{('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _check(name: str, value: Any, whole: bool = False) -> None:
    if value is None:
        return
    kind = "whole number" if whole else "number"
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise ValueError(f"limit {name} must be a {kind} above zero or None, not {ascii(value)[:40]}")
    if not 0 < value < 2**53:
        raise ValueError(f"limit {name} must be a {kind} above zero, or None for no limit; it is {str(value)[:40]}")
