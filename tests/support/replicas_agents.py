"""Agents that do something to their own replica."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from typing import Any


class Suicidal:
    """Asks its own replica to go, in the middle of a turn."""

    def run(self, message: str) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        return "gone soon"


class Stubborn:
    """Does not stop: in a thread, or on the event loop."""

    def __init__(self, request: Any) -> None:
        self.run = self._flow if request.config["voice"] == "flow" else self._block

    def _block(self, message: str) -> str:
        time.sleep(60)
        return message

    async def _flow(self, message: str) -> str:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.5)
        return message


def stubborn(request: Any) -> Stubborn:
    return Stubborn(request)


def suicidal(request: Any) -> Suicidal:
    return Suicidal()
