"""What a worker holds, and how it lets go: copies, their releases, and the ends of sessions."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from coordinator import operations as ops
from coordinator.errors import GreenroomError
from coordinator.link import SyncLink, run
from coordinator.settings import Settings
from workers.copies import Copies, Copy
from workers.lifecycle import Lifecycle
from workers.releases import Releases

logger = logging.getLogger("greenroom.worker")


class Holding:
    """The copies of one worker. Everything that ends one goes through here, and on to the background pool."""

    link: SyncLink

    def __init__(self, settings: Settings, worker: str, lifecycle: Lifecycle | None) -> None:
        self.settings, self.worker = settings, worker
        self.lifecycle = lifecycle or Lifecycle()
        self.copies = Copies()
        self.releases = Releases(settings.release_threads, settings.release_limit)
        self.loop: asyncio.AbstractEventLoop | None = None
        self._releasing = threading.RLock()
        self._closing: dict[str, Future[None]] = {}
        self._ending: set[tuple[str, int]] = set()

    def counts(self, copy: Copy) -> bool:
        """Whether idle time counts for this agent."""
        try:
            return self.lifecycle.last_activity(copy.agent) is not None
        except Exception:
            logger.exception("no activity timestamp of %r", copy.session)
            return False

    def unpin(self, copy: Copy) -> None:
        with self._releasing:
            if gone := self.copies.unpin(copy):
                self.release(gone)

    def discard(self, session: str, generation: int, mode: str, reason: str) -> None:
        """The copy must go, now or when its turn is over."""
        with self._releasing:
            if gone := self.copies.discard(session, generation, mode, reason):
                self.release(gone)

    def closing(self, session: str) -> Future[None] | None:
        """The hard close or the end of this session that is under way here."""
        with self._releasing:  # nobody is between taking the copy out and handing it on
            return self._closing.get(session)

    def release(self, copy: Copy) -> None:
        """Hand a copy that nobody has any more to the background pool."""
        session, generation, mode = copy.session, copy.generation, copy.mode
        agent, copy.agent = copy.agent, None
        lifecycle = self.lifecycle

        def release() -> None:
            nonlocal agent
            try:
                try:
                    self._call(lifecycle.keep, agent)
                finally:
                    self._call(lifecycle.close if mode == "hard" else lifecycle.release, agent)
            finally:
                agent = None  # frees its message history (H7)
                if mode == "hard":
                    self._ended(session, generation)

        logger.info("releasing %r: %s, %s", session, mode, copy.reason)
        if mode == "hard":
            self._ending.add((session, generation))
        done = self.releases.submit(f"the {mode} release of {session!r}", release)
        if mode == "hard":
            self._is_closing(session, done)

    def _is_closing(self, session: str, done: Future[None]) -> None:
        """Whoever builds for this session again here waits for this."""
        self._closing[session] = done
        done.add_done_callback(lambda _: self._closed(session, done))

    def _closed(self, session: str, done: Future[None]) -> None:
        with self._releasing:
            if self._closing.get(session) is done:
                del self._closing[session]

    def end_session(self, session: str, generation: int, left_over: bool = False) -> None:
        """The session is over and nobody holds it: run its hook, once in the fleet.

        `left_over`: somebody else should have done it, some time ago. If the session has begun anew since, it is too
        late: its new life must not be torn down.
        """

        def end() -> None:
            try:
                mine, alive = run(ops.ending(self.link, session, self.worker, generation))
                if mine and not (left_over and alive):
                    self._call(self.lifecycle.end_session, session)
            finally:
                self._ended(session, generation)

        with self._releasing:
            if (session, generation) in self._ending or self.copies.holds(session, generation):
                return
            self._ending.add((session, generation))
            self._is_closing(session, self.releases.submit(f"the end of {session!r}", end))

    def _ended(self, session: str, generation: int) -> None:
        """Tell Redis that nobody else has to end this session."""
        ended = [(session, generation)]
        self.quietly("report a session's end", lambda: run(ops.closed(self.link, self.worker, ended)))
        self._ending.discard((session, generation))
        self.quietly("look for another end", lambda: self._end_again(session, generation))

    def _end_again(self, session: str, generation: int) -> None:
        """A reset that came between our report and now took this end for its own: it gets one of its own."""
        if run(ops.ending(self.link, session, self.worker, generation))[0]:
            self.end_session(session, generation)

    def _call(self, method: Callable[..., Any], argument: Any) -> None:
        """A method of the lifecycle; a coroutine runs on the worker's event loop, or on one of its own."""
        result = method(argument)
        if not inspect.isawaitable(result):
            return
        if self.loop and self.loop.is_running():
            asyncio.run_coroutine_threadsafe(_await(result), self.loop).result(self.settings.release_limit)
        else:
            asyncio.run(_await(result))

    def quietly(self, what: str, action: Callable[[], Any]) -> None:
        """Without Redis, letting go goes on."""
        try:
            action()
        except GreenroomError as error:
            logger.warning("could not %s: %s", what, error)


async def _await(awaitable: Any) -> Any:
    return await awaitable
