"""What becomes of one message: pieces while they come, and at last an answer or a problem.

Written by the task that has the turn, read by the one that has the connection. Neither waits for the other: a client
that is slow, or gone, holds up no turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from workers.gateway.problems import Problem


class Exchange:
    """One message's way through a replica. Belongs to one event loop."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.answer: dict[str, Any] | None = None
        self.problem: Problem | None = None
        self.fence = 0  #: of the turn that a message which was passed on has here
        self.interrupted = False  #: the turn that was in the message's way has been asked to stop
        self.replayed = False  #: the answer is that of an earlier delivery of the message
        self.on_leave: Callable[[], object] | None = None  #: what to do when the client is gone
        self._grown = asyncio.Event()
        self._read = 0

    @property
    def over(self) -> bool:
        return self.answer is not None or self.problem is not None

    def begin(self, fence: int) -> None:
        """The turn has begun: whoever passed the message on is told."""
        self.fence = fence
        self._grown.set()

    def say(self, piece: str) -> None:
        self.pieces.append(piece)
        self._grown.set()

    def close(self, outcome: dict[str, Any] | Problem) -> None:
        if isinstance(outcome, Problem):
            self.problem = outcome
        else:
            self.answer = outcome
        self._grown.set()

    def complete(self, answer: dict[str, Any]) -> None:
        """The message has this answer already. What was not said of it is said now."""
        said = "".join(self.pieces)
        if answer["reply"] != said and answer["reply"].startswith(said):
            self.say(answer["reply"][len(said) :])
        self.close(answer)

    def leave(self) -> None:
        """The client is gone."""
        if self.on_leave and not self.over:
            self.on_leave()

    async def ended(self) -> None:
        while not self.over:
            await self._grown.wait()
            self._grown.clear()

    async def grown(self, seconds: float) -> bool:
        """Wait until there is something new, for so long at most. Whether there is."""
        if self._read == len(self.pieces) and not self.over:
            try:
                async with asyncio.timeout(seconds):
                    await self._grown.wait()
            except TimeoutError:
                return False
        self._grown.clear()
        return True

    def take(self) -> list[str]:
        """The pieces that were not taken yet."""
        new = self.pieces[self._read :]
        self._read += len(new)
        return new
