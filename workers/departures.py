"""How copies and sessions leave a worker: releases, hard closes, and the ends of sessions that nobody holds.

Everything here happens in the background. A session's end is carried out once: it is remembered from the moment it is
ours until Redis has heard that it was done (rule 11a), and Redis lets nobody begin the session before that.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from coordinator import operations as ops
from coordinator.errors import CoordinatorUnavailable, GreenroomError
from coordinator.link import SyncLink, run
from coordinator.settings import Settings
from workers.copies import Copies, Copy
from workers.lifecycle import Lifecycle
from workers.releases import Releases
from workers.rounds import within

logger = logging.getLogger("greenroom.worker")

T = TypeVar("T")
Ending = tuple[str, int]  #: session and generation, as in Redis's `closing`


class Departures:
    """The way out for the copies of one worker. `unheard`: somebody should report again, soon."""

    link: SyncLink

    def __init__(self, settings: Settings, worker: str, instance: str, lifecycle: Lifecycle, copies: Copies) -> None:
        self._settings, self._lifecycle, self._copies = settings, lifecycle, copies
        self._worker, self._instance = worker, instance
        threads, limit = settings.release_threads, settings.release_limit
        self.releases = Releases(threads, limit)
        self.endings = Releases(threads, limit)  # a session that waits for its end is not in line behind releases
        self.interrupts = Releases(2, limit)  # nor is a turn that is to stop
        self.loop: asyncio.AbstractEventLoop | None = None
        self.unheard: Callable[[], None] = lambda: None
        self._leaving = threading.RLock()  # between taking a copy out and handing it on
        self._ours: set[Ending] = set()  # to be carried out here, or carried out and not reported yet
        self._unreported: set[Ending] = set()  # of those: done, or given up on
        self._refused = False  # the last report was, and that was said

    # -- copies

    def unpin(self, copy: Copy) -> None:
        with self._leaving:
            if gone := self._copies.unpin(copy):
                self.release(gone)

    def discard(self, session: str, generation: int, mode: str, reason: str) -> None:
        """The copy must go, now or when its turn is over."""
        with self._leaving:
            if gone := self._copies.discard(session, generation, mode, reason):
                self.release(gone)

    def release(self, copy: Copy) -> None:
        """Hand a copy that nobody has any more to the background."""
        session, generation, hard = copy.session, copy.generation, copy.mode == "hard"
        agent, copy.agent = copy.agent, None
        logger.info("releasing %r: %s, %s", session, copy.mode, copy.reason)

        def go(close: bool) -> None:
            nonlocal agent
            try:
                self.call(self._lifecycle.keep, agent)
            finally:
                leaving, agent = agent, None  # frees its message history (H7)
                self.call(self._lifecycle.close if close else self._lifecycle.release, leaving)

        if hard:
            what = f"the hard release of {session!r}"
            self._carry_out(what, (session, generation), lambda: go(True), otherwise=lambda: go(False))
        else:
            self.releases.submit(f"the soft release of {session!r}", lambda: go(False))

    async def fate(self, session: str, generation: int) -> str:
        """What Redis says of a copy, or of a session's end: 'keep', 'soft', or 'hard' (it is ours to carry out)."""
        return await ops.fate(self.link, session, self._worker, self._instance, generation)

    # -- ends of sessions

    def end_session(self, session: str, generation: int) -> None:
        """Redis says that this session's end is ours: close the copy we have, or run the hook where there is none."""
        with self._leaving:
            if (session, generation) in self._ours:
                return
            if self._copies.holds(session, generation):
                self.discard(session, generation, "hard", "reset")
                return
            hook = self._lifecycle.end_session
            self._carry_out(f"the end of {session!r}", (session, generation), lambda: self.call(hook, session))

    def _carry_out(
        self, what: str, ending: Ending, end: Callable[[], None], otherwise: Callable[[], None] | None = None
    ) -> None:
        """Once, if it is still ours when its time comes: we may have been taken for dead, and another worker may have
        done it; or it was given up on while it waited, and the session's new life may have begun. Then, `otherwise`. If
        Redis cannot say, an agent that is here is closed all the same, while a session without one waits: Redis will
        hand it to us again."""
        self._ours.add(ending)

        def act() -> None:
            ours = ending in self._ours and ending not in self._unreported
            if ours:
                try:
                    ours = run(self.fate(*ending)) == "hard"
                except CoordinatorUnavailable as error:
                    logger.warning("could not ask whether %s is ours: %s", what, error)
                    ours = otherwise is not None
                if not ours:
                    self._ours.discard(ending)
            if ours:
                try:
                    end()
                finally:
                    self._done(ending)
            elif otherwise:
                otherwise()

        self.endings.submit(what, act).add_done_callback(lambda done: self._given_up(ending, done))

    def _given_up(self, ending: Ending, done: Future[None]) -> None:
        """It took too long: the session need not wait for it any more. Called by whoever watches the time."""
        if isinstance(done.exception(), TimeoutError) and ending in self._ours:
            self._unreported.add(ending)
            self.unheard()

    def _done(self, ending: Ending) -> None:
        if ending in self._ours:
            self._unreported.add(ending)
            if not self.report():
                self.unheard()

    def report(self) -> bool:
        """Tell Redis which ends were carried out. What it has not heard is told again; it is not done again."""
        endings = list(self._unreported)
        try:
            run(ops.closed(self.link, self._worker, self._instance, endings))
        except GreenroomError as error:
            if not self._refused:
                logger.warning("could not report a session's end, trying again: %s", error)
            self._refused = True
            return False
        self._refused = False
        self._unreported.difference_update(endings)
        self._ours.difference_update(endings)
        return True

    @property
    def has_unreported(self) -> bool:
        return bool(self._unreported)

    # -- all of it

    def check(self) -> None:
        """Give up on what takes too long. Needs no Redis (H15)."""
        for pool in (self.releases, self.endings, self.interrupts):
            pool.check()

    def finish(self, deadline: float) -> bool:
        """Until everything is let go of or given up on, and reported: at `deadline` (monotonic) at the latest. Whether
        the first was reached."""
        finished = True
        for pool in (self.releases, self.endings):
            finished = pool.finish(deadline - time.monotonic()) and finished
        while self._unreported and (left := deadline - time.monotonic()) > 0:
            if within(left, "report", self.report) and self._unreported:
                time.sleep(0.05)
        return finished

    def hurry(self) -> None:
        """The worker leaves: everything that is waiting to be released may start."""
        self.releases.widen()
        self.endings.widen()

    def stop(self) -> None:
        for pool in (self.releases, self.endings, self.interrupts):
            pool.stop()

    def call(self, method: Callable[..., Any], argument: Any) -> None:
        """A method of the lifecycle; a coroutine runs on the worker's event loop, or on one of its own. One that takes
        longer than a release may is cancelled, and has ended before we go on."""
        result = method(argument)
        if not inspect.isawaitable(result):
            return
        limit = self._settings.release_limit
        if self.loop and self.loop.is_running():
            _wait(asyncio.run_coroutine_threadsafe(bounded(result, limit), self.loop), self.loop)
        else:
            asyncio.run(bounded(result, limit))


def _wait(flow: Future[Any], loop: asyncio.AbstractEventLoop) -> None:
    """Until it has ended, however long that takes; but a loop that was stopped ends nothing any more."""
    while True:
        try:
            flow.result(1.0)
            return
        except TimeoutError:
            if flow.done() or not loop.is_running():
                raise


async def bounded(awaitable: Awaitable[T], seconds: float) -> T:
    """What a hook returned; cancelled after so many seconds."""
    async with asyncio.timeout(seconds):
        try:
            return await awaitable
        except SystemExit as error:  # it would end the event loop
            raise RuntimeError("a hook called sys.exit()") from error
