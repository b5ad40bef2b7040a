"""The one place where Python values become bytes for Redis and come back."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, cast

import msgpack


def text(raw: bytes | str | int | None) -> str:
    """A reply as text. Redis answers in bytes; a number stays its digits."""
    if isinstance(raw, bytes):
        return raw.decode()
    return "" if raw is None else str(raw)


def pairs(flat: list[Any] | dict[Any, Any]) -> dict[str, str]:
    """A flat reply (`HGETALL` in RESP2, a stream entry) as a dict of text."""
    if isinstance(flat, dict):
        return {text(name): text(value) for name, value in flat.items()}
    return {text(flat[i]): text(flat[i + 1]) for i in range(0, len(flat), 2)}


def pack(value: Any, limit: int) -> bytes:
    """Plain data as msgpack, at most `limit` bytes."""
    try:
        data = cast(bytes, msgpack.packb(value, use_bin_type=True))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"a snapshot must be plain data: {type(error).__name__}") from None
    if len(data) > limit:
        raise ValueError(f"a snapshot may have {limit} bytes; this one has {len(data)}")
    return data


def unpack(data: bytes, limit: int) -> Any:
    """What `pack` wrote, under the same limit. Plain data only; ValueError for anything else."""
    if len(data) > limit:
        raise ValueError(f"a snapshot may have {limit} bytes; this one has {len(data)}")
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=False)
    except Exception as error:  # msgpack's own errors have no common base
        raise ValueError(f"a snapshot that is not msgpack: {type(error).__name__}") from None


@dataclass(frozen=True, slots=True)
class Message:
    """What came on a worker's channel."""

    mode: str  #: soft, hard, interrupt, wake or drain
    session: str = ""
    generation: int = 0
    fence: int = 0
    turn: str = ""
    reason: str = ""


def message(data: bytes) -> Message | None:
    """Read a message; None for one that is not ours. A channel is open to anybody: nothing here may raise."""
    if len(data) > 8192:
        return None
    try:
        raw = json.loads(data)
        if not isinstance(raw, dict) or raw.get("v") != 1:
            return None
        words = {name: raw.get(name, "") for name in ("mode", "session", "turn", "reason")}
        if not all(isinstance(word, str) for word in words.values()):
            return None
        return Message(generation=int(raw.get("generation", 0)), fence=int(raw.get("fence", 0)), **words)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
