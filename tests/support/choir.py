"""Agents for gateway replicas, in every form that `run` may have; `config["voice"]` says which. What they do is written
down in the file that CHOIR names: one line of JSON for each run's begin and end."""

from __future__ import annotations

import asyncio
import builtins
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from workers.turns import BuildRequest


def note(what: str, session: str, **more: Any) -> None:
    if path := os.environ.get("CHOIR"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(
                json.dumps({"what": what, "session": session, "pid": os.getpid(), "at": time.time()} | more) + "\n"
            )


class Singer:
    """Says a message back; `/sleep N` takes so many seconds first, `/fail` raises, `/drip N SECONDS` has N pieces, so
    far apart (0.05)."""

    def __init__(self, request: BuildRequest) -> None:
        self.session, self.heard = request.session, 0
        kept = request.snapshot or {}
        self.prompt = kept.get("prompt") or f"prompt of {request.session}, {time.time_ns()}"
        self._last_activity_ts = time.time()
        self._stop = threading.Event()

    def _pieces(self, message: str) -> Iterator[tuple[str, float]]:
        """What to say, and for how long to wait before each piece."""
        command, _, rest = message.partition(" ")
        self._stop.clear()
        match command:
            case "/sleep":
                yield "slept", float(rest)
            case "/fail":
                yield "so far ", 0.0
                raise RuntimeError("secret: the provider's key is hunter2")
            case "/drip":
                count, _, seconds = rest.partition(" ")
                for number in range(int(count)):
                    yield f"{number} ", float(seconds or 0.05)
            case "/prompt":
                yield self.prompt, 0.0
            case "/bytes":
                yield b"not text", 0.0  # type: ignore[misc]
            case "/half":
                yield "\ud800", 0.0
            case _:
                self.heard += 1
                yield message, 0.0

    def snapshot(self) -> dict[str, Any]:
        return {"prompt": self.prompt}

    def release_clients(self) -> None:
        note("release", self.session)

    def close(self) -> None:
        note("close", self.session)


class Pieces(Singer):
    """A plain iterator."""

    def run(self, message: str, **options: Any) -> Iterator[str]:
        note("begin", self.session, message=message, fence=options["fence"], thread=threading.current_thread().name)
        try:
            for piece, seconds in self._pieces(message):
                if self._stop.wait(seconds):
                    yield "stopped"
                    break
                yield piece
        finally:
            note("end", self.session, message=message)


class Text(Pieces):
    """Plain text."""

    def run(self, message: str) -> str:  # type: ignore[override]
        return "".join(super().run(message, fence=0))


class Flow(Singer):
    """An async iterator."""

    async def run(self, message: str, *, fence: int) -> AsyncIterator[str]:
        note("begin", self.session, message=message, fence=fence, thread=threading.current_thread().name)
        try:
            for piece, seconds in self._pieces(message):
                waited = 0.0
                while waited < seconds and not self._stop.is_set():
                    await asyncio.sleep(0.05)
                    waited += 0.05
                if self._stop.is_set():
                    yield "stopped"
                    break
                yield piece
        finally:
            note("end", self.session, message=message)


class Later(Flow):
    """A coroutine that gives text."""

    async def run(self, message: str) -> str:  # type: ignore[override]
        return "".join([piece async for piece in super().run(message, fence=0)])


class Lazy(Flow):
    """A plain function that gives an async iterator."""

    def run(self, message: str) -> AsyncIterator[str]:  # type: ignore[override]
        return super().run(message, fence=0)


class Wrong(Singer):
    """Gives a number."""

    def run(self, message: str) -> Any:
        return 7


class Abrupt(Singer):
    """Raises the exception that the message names."""

    def run(self, message: str) -> Any:
        raise getattr(builtins, message)("secret")


class Abruptly(Singer):
    """The same in a coroutine."""

    async def run(self, message: str) -> Any:
        raise getattr(builtins, message)("secret")


class Halfway(Singer):
    """The same after a piece."""

    def run(self, message: str) -> Iterator[str]:
        yield "so far"
        raise getattr(builtins, message)("secret")


class Oneself(Singer):
    """Cancels itself."""

    async def run(self, message: str) -> str:
        raise asyncio.CancelledError


class Flood(Singer):
    """Never ends by itself."""

    def run(self, message: str) -> Iterator[str]:
        note("begin", self.session, message=message)
        while not self._stop.is_set():
            yield "x" * 1000


class Whole(Singer):
    """All at once."""

    def run(self, message: str) -> str:
        return "x" * int(message)


def _polite(kind: type[Singer]) -> type[Singer]:
    """One that knows `interrupt`."""
    return type(f"Polite{kind.__name__}", (kind,), {"interrupt": lambda self: self._stop.set()})


SHARED = Later(BuildRequest("anybody", None, "", None, 0))
VOICES = {kind.__name__.lower(): kind for kind in (Pieces, Text, Flow, Later, Lazy)}
_ODD = {kind.__name__.lower(): kind for kind in (Wrong, Abrupt, Abruptly, Halfway, Oneself, Flood, Whole)}


def build(request: BuildRequest) -> Singer | None:
    config = request.config or {}
    if config.get("gives") == "nothing":
        return None
    if config.get("model") == "broken":
        raise getattr(builtins, config.get("raises", "RuntimeError"))("secret: no such model")
    kind = (VOICES | _ODD)[config.get("voice", "flow")]
    note("build", request.session)
    time.sleep(config.get("build", 0.0))
    if config.get("shared"):
        return SHARED
    return (_polite(kind) if config.get("polite", True) else kind)(request)
