"""The agent that is served where there is no other: it says back what it hears, word by word.

    greenroom serve --agent workers.gateway.echo:build --port 8000

It has what a real one has: a frozen system prompt that moves with the session, a count of messages, and `interrupt`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from workers.turns import BuildRequest


class EchoAgent:
    """Stands for a heavy one."""

    def __init__(self, request: BuildRequest) -> None:
        kept = request.snapshot if isinstance(request.snapshot, dict) else {}
        self.prompt: str = kept.get("prompt") or f"You say back what you hear. This chat began {time.ctime()}."
        self.messages: int = kept.get("messages", 0)
        self._last_activity_ts = time.time()
        self._stopping = False

    async def run(self, message: str) -> AsyncIterator[str]:
        """`/prompt` says the frozen prompt, `/count` how many messages there were, `/slow N` takes N seconds."""
        self._stopping = False
        self.messages += 1
        self._last_activity_ts = time.time()
        command, _, rest = message.partition(" ")
        if command == "/prompt":
            yield self.prompt
        elif command == "/count":
            yield str(self.messages)
        elif command == "/slow":
            until = time.monotonic() + min(float(rest) if rest.replace(".", "", 1).isdecimal() else 1.0, 3600.0)
            while not self._stopping and time.monotonic() < until:
                yield "."
                await asyncio.sleep(0.1)
            yield "stopped" if self._stopping else "done"
        else:
            for place, word in enumerate(message.split(" ")):
                if self._stopping:
                    return
                yield f" {word}" if place else word

    def interrupt(self) -> None:
        self._stopping = True

    def snapshot(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "messages": self.messages}

    def release_clients(self) -> None:
        """It has none."""


def build(request: BuildRequest) -> EchoAgent:
    return EchoAgent(request)
