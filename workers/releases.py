"""Releases in the background: a few threads, a time limit for each release, nothing waits for any of it.

A thread cannot be killed: a release that takes too long is given up on, its thread is replaced, and it ends when the
release does. There are never more than `threads` releases in time, nor more than STUCK that are not. Where all threads
are stuck, what waits for one is given up on as well, in that nobody waits for it any more; it is done when one is back.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

logger = logging.getLogger("greenroom.releases")

#: Above so many stuck releases no thread is replaced any more: the rest waits.
STUCK = 64


@dataclass(slots=True, eq=False)
class _Job:
    what: str
    action: Callable[[], None]
    done: Future[None] = field(default_factory=Future)
    queued: float = field(default_factory=time.monotonic)
    started: float = 0.0
    given_up: bool = False
    stuck: bool = False  #: given up while it ran: its thread was replaced


class Releases:
    """A bounded pool. `failed` counts releases that raised or took too long."""

    def __init__(self, threads: int, limit: float) -> None:
        self._threads, self._limit = threads, limit
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: set[_Job] = set()
        self._unfinished: set[_Job] = set()
        self._alive = 0
        self.failed = 0

    def submit(self, what: str, action: Callable[[], None]) -> Future[None]:
        """Run an action in the background. `what` names it in the log."""
        job = _Job(what, action)
        with self._lock:
            self._unfinished.add(job)
            spawn = self._alive < self._threads and self._stuck() < STUCK
            self._alive += spawn
        self._queue.put(job)
        if spawn:
            self._spawn()
        return job.done

    def check(self) -> None:
        """Give up on what takes too long. Called by whoever watches the time, and by whoever waits."""
        now = time.monotonic()
        with self._lock:
            late = [job for job in self._running if not job.stuck and now - job.started > self._limit]
            for job in late:
                job.stuck = True
            spawn = len(late) if self._stuck() <= STUCK else 0
            self._alive += spawn - len(late)
            if not self._alive:  # every thread is stuck: what waits may have to wait for ever
                late += [job for job in self._unfinished if not job.started and now - job.queued > self._limit]
            for job in late:
                job.given_up = True
                self._unfinished.discard(job)
                self.failed += 1
        for job in late:
            how = "its thread goes on" if job.stuck else "all threads are stuck, and it still waits for one"
            logger.error("gave up on %s after %.1f s; %s", job.what, self._limit, how)
            job.done.set_exception(TimeoutError(f"{job.what} took longer than {self._limit} s"))
        for _ in range(spawn):
            self._spawn()

    def widen(self) -> None:
        """A thread for each release that waits, as far as there may be."""
        with self._lock:
            self._threads = max(self._threads, STUCK)
            spawn = min(self._queue.qsize(), self._threads - self._alive - self._stuck())
            spawn = max(0, spawn)
            self._alive += spawn
        for _ in range(spawn):
            self._spawn()

    def finish(self, seconds: float) -> bool:
        """Wait until everything submitted is done or given up on, for so long at most."""
        deadline = time.monotonic() + seconds
        while True:
            self.check()
            with self._lock:
                waiting = [job.done for job in self._unfinished]
            if not waiting or time.monotonic() > deadline:
                return not waiting
            try:
                waiting[0].exception(0.05)
            except TimeoutError:
                continue

    def stop(self) -> None:
        """No more releases: idle threads end."""
        with self._lock:
            ending, self._alive = self._alive, 0
        for _ in range(ending):
            self._queue.put(None)

    def _spawn(self) -> None:
        thread = threading.Thread(target=self._work, name="greenroom-release", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down and starts no more threads: do it here
            self._queue.put(None)
            self._work()

    def _work(self) -> None:
        while job := self._queue.get():
            with self._lock:
                job.started = time.monotonic()
                self._running.add(job)
            error: BaseException | None = None
            try:
                job.action()
            except BaseException as raised:
                error = raised
                logger.exception("%s failed", job.what)
            job.action = _nothing  # it holds the agent, and this frame lives on
            with self._lock:
                self._running.discard(job)
                self._unfinished.discard(job)
                self.failed += error is not None and not job.given_up
            if not job.given_up and error is None:
                job.done.set_result(None)
            elif not job.given_up and error is not None:
                job.done.set_exception(error)
            error = None
            if job.stuck and not self._takes_its_place_again():
                return
            del job

    def _takes_its_place_again(self) -> bool:
        """A thread that was given up on and is back: is there a place for it?"""
        with self._lock:
            back = self._alive < self._threads
            self._alive += back
            return back

    def _stuck(self) -> int:
        return sum(job.stuck for job in self._running)


def _nothing() -> None:
    """In place of a release that is done."""
