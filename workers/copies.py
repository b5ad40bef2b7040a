"""The copies this process holds: plain data and rules, no I/O.

A copy is known by (session, generation). Whoever is about to use one pins it; a pinned copy is never given out for
release, it is marked, and comes out when the last pin goes. Taking it out is what makes a release happen once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Copy:
    """One agent object. `generation` is the fence of the turn that built it."""

    session: str
    generation: int
    signature: str
    agent: Any
    pins: int = 0
    mode: str = ""  #: how it is to be released once nobody uses it
    reason: str = ""
    turn: tuple[str, int, str] | None = None  #: id, fence and lease key of the turn that has it, until that has ended
    unsure: bool = False  #: whether the last turn's end was accepted is not known
    told: int = 0  #: how often its eviction was heard of
    used: int = 0  #: fence of the last turn that had it
    saved: bytes | None = None  #: digest of the snapshot that Redis has; b'': it has none; None: not known
    saved_at: float = 0.0  #: when it was sent, by our own clock


@dataclass(slots=True)
class Copies:
    """All copies of a worker, the least recently used first. Safe for threads; never calls out under its lock."""

    _copies: dict[tuple[str, int], Copy] = field(default_factory=dict)
    _newest: dict[str, Copy] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        return len(self._copies)

    def add(self, copy: Copy) -> None:
        """Enter a copy that was just built, pinned by its turn."""
        with self._lock:
            copy.pins += 1
            self._copies[copy.session, copy.generation] = copy
            self._newest[copy.session] = copy

    def pin(self, session: str) -> Copy | None:
        """The session's newest copy, kept from being released until `unpin`."""
        with self._lock:
            copy = self._newest.get(session)
            if copy is None or copy.mode:
                return None
            copy.pins += 1
            return copy

    def unpin(self, copy: Copy) -> Copy | None:
        """Done with it. Gives it back if it is to be released now."""
        with self._lock:
            copy.pins -= 1
            return self._take(copy) if copy.mode else None

    def touch(self, copy: Copy, told: int) -> None:
        """The copy was used, and Redis said that it stays: it is the newest now.

        What was rumoured of its eviction before Redis was asked (`told` is the count of then) does not count any more.
        What was heard since does: it may have been evicted right behind the end of its turn.
        """
        with self._lock:
            if copy.told == told:
                copy.mode = copy.reason = ""
            if self._copies.pop((copy.session, copy.generation), None):
                self._copies[copy.session, copy.generation] = copy

    def discard(self, session: str, generation: int, mode: str, reason: str) -> Copy | None:
        """The copy must go. Gives it back if nobody uses it; else it comes out at the last `unpin`. Hard beats soft."""
        with self._lock:
            copy = self._copies.get((session, generation))
            if copy is None:
                return None
            copy.told += 1
            if copy.mode != "hard":
                copy.mode, copy.reason = mode, reason
            return self._take(copy)

    def holds(self, session: str, generation: int) -> bool:
        return (session, generation) in self._copies

    def idle(self) -> list[Copy]:
        """Copies that nobody uses, oldest first."""
        with self._lock:
            return [copy for copy in self._copies.values() if not copy.pins]

    def __iter__(self) -> Iterator[Copy]:
        with self._lock:
            return iter(list(self._copies.values()))

    def _take(self, copy: Copy) -> Copy | None:
        if copy.pins or not self._copies.pop((copy.session, copy.generation), None):
            return None
        if self._newest.get(copy.session) is copy:
            del self._newest[copy.session]
        return copy
