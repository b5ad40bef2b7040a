"""A plain agent that counts what is done to it."""

from __future__ import annotations

from typing import Any


class Agent:
    """Counts what is done to it."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self.released = 0
        self.closed = 0
        self.interrupted = 0
        self._last_activity_ts = 1.0

    def release_clients(self) -> None:
        self.released += 1

    def close(self) -> None:
        self.closed += 1

    def interrupt(self) -> None:
        self.interrupted += 1
