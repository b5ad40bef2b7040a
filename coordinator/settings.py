"""Settings: an argument, else `GREENROOM_<NAME>` in the environment, else the default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from coordinator.limits import Limits
from coordinator.names import room_name

#: What a setting is called in the environment where it is not `GREENROOM_<NAME>`.
_VARIABLES = {"redis": "GREENROOM_REDIS_URL"}
_DEFAULT_URL = "redis://localhost:6379"
_TRUTHS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class FromEnvironment:
    """Base of dataclasses whose fields can be set in the environment. A field's default says of what type it is;
    numbers are above zero, or zero where that is the default."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for each in fields(self):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if isinstance(each.default, (str, bool)):
                continue
            bad = isinstance(value, bool) or not isinstance(value, (int, float))
            if bad or not (0 < value < 2**53 or value == 0 == each.default):
                raise ValueError(f"{each.name} must be a number above zero, not {ascii(value)[:40]}")

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None, **arguments: Any) -> Self:
        """From arguments (None: not given) and the environment."""
        environ = os.environ if environ is None else environ
        known = {each.name: each for each in fields(cls)}  # type: ignore[arg-type]
        if unknown := sorted(arguments.keys() - known.keys()):
            raise TypeError(f"unknown setting {unknown[0]!r}: one of {', '.join(known)}")
        values = {name: value for name, value in arguments.items() if value is not None}
        for name, each in known.items():
            variable = _VARIABLES.get(name, f"GREENROOM_{name.upper()}")
            if name not in values and (text := environ.get(variable)):
                values[name] = _value(variable, text, type(each.default))
        return cls(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(FromEnvironment):
    """Everything that can be set, in seconds and bytes."""

    redis: Any = field(default=_DEFAULT_URL, repr=False)  #: URL, or a client that describes the connection
    room: str = "default"
    address: str = ""  #: where other replicas reach this worker
    lease: float = 30.0  #: how long a turn's claim lasts without a beat; a beat is a third of it
    retry_for: float = 5.0  #: for how long a call is retried while Redis cannot be reached
    socket_timeout: float = 5.0
    connections: int = 64  #: of the pool; a call waits for a free one
    turn_limit: float = 0.0  #: past it a turn is lost, and its agent interrupted; 0: no limit
    drain_for: float = 30.0  #: how long leaving waits for running turns
    leave_for: float = 90.0  #: how long leaving may take in all: turns, releases, reports
    release_limit: float = 30.0  #: how long one release may take before it is given up on
    release_threads: int = 4
    build_threads: int = 32  #: of an AsyncWorker, for builders that are no coroutines
    reconcile_every: float = 60.0
    snapshot_ttl: float = 7 * 86400.0
    snapshot_limit: int = 1 << 20
    answer_ttl: float = 3600.0  #: how long the answer to a message is kept for whoever delivers it again
    answer_limit: int = 1 << 16  #: of such an answer; one that is longer is not kept, its message runs no second time
    signature_key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        room_name(self.room)
        FromEnvironment.__post_init__(self)
        if self.lease < 0.1:
            raise ValueError(f"lease must be a tenth of a second or more, not {self.lease}")


def limits_from(environ: Mapping[str, str] | None = None) -> Limits:
    """Limits from `GREENROOM_LIMIT_ROOM`, `_WORKER`, `_IDLE_TTL` and `_MEMORY`; unset means none."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    for name, kind in (("room", int), ("worker", int), ("idle_ttl", float), ("memory", str)):
        variable = f"GREENROOM_LIMIT_{name.upper()}"
        if text := environ.get(variable):
            values[name] = _value(variable, text, kind)
    return Limits(**values)


def _value(variable: str, text: str, kind: type) -> Any:
    if kind is str:
        return text
    if kind is bool:
        if text.lower() not in _TRUTHS:
            raise ValueError(f"{variable} must be 1 or 0, not {ascii(text)[:40]}")
        return _TRUTHS[text.lower()]
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{variable} must be a number, not {ascii(text)[:40]}") from None
