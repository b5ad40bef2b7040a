"""`Worker`: for programs that use threads."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from coordinator import operations as ops
from coordinator.link import SyncLink, run
from workers import flows
from workers.base import BaseWorker
from workers.departures import bounded
from workers.turns import BuildRequest, TurnState

T = TypeVar("T")


class Turn(TurnState):
    """One exclusive use of a session's agent: `with worker.turn(...) as turn`."""

    def __enter__(self) -> Self:
        run(flows.enter_turn(self._engine, self._io, self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(flows.leave_turn(self._engine, self._io, self, error))

    def rebind(self, key: str) -> None:
        """Move the turn's lease to another key: its conversation id rotated."""
        run(flows.rebind(self._engine, self._io, self, key))


class Worker(BaseWorker["_ThreadIO", Turn]):
    """A process that holds agents; `build(request)` makes one. Settings are arguments, else GREENROOM_*."""

    _turn = Turn

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Join the room."""
        self._engine.start()
        self._io = _ThreadIO(SyncLink(self._engine.settings, self._scripts), self._build)
        self._signals.install()

    def drain(self) -> None:
        """Take no new sessions, and let idle agents go. The worker stays in the room until it is closed."""
        self._running()
        self._engine.drain()

    def close(self) -> None:
        """Drain and leave: turns end, copies are released, the worker is deregistered. May be called again. From inside
        a turn it returns at once, and is carried out when that turn is over."""
        if self._engine.foreign:
            return
        if self._io and flows.own_turns(self._engine, self._io):
            self._engine.draining = True
            threading.Thread(target=self.close, name="greenroom-drain").start()
            return
        self._engine.leave()
        self._signals.remove()
        if self._io:
            run(self._io.link.disconnect())

    def evict(self, session: str, mode: str = "soft", reason: str = "reset") -> bool:
        """Evict a session's agent wherever it is; hard: the session is over. False when nobody holds one."""
        self._engine.check_eviction(session, mode, reason)
        answer = run(ops.evict(self._running().link, session, mode, reason, self.id))
        return self._engine.evicted(session, mode, reason, answer)

    def interrupt(self, session: str, fence: int = 0) -> bool:
        """Ask the turn that runs on a session, or only the one with this fence, to stop, wherever it runs. False when
        none does."""
        self._engine.check_session(session)
        return run(ops.interrupt(self._running().link, session, fence))

    def known(self) -> bool:
        """Whether Redis can be reached, and knows this worker."""
        link = self._running().link
        return bool(run(link.read("ZSCORE", link.keys.workers, self.id)))

    def sweep(self) -> int:
        """Evict what has been idle for longer than idle_ttl; how many went."""
        return run(ops.maintain(self._running().link, "sweep", self._engine.limits)).idle


class _ThreadIO:
    """How a flow waits, builds and finishes in a thread."""

    def __init__(self, link: SyncLink, build: Callable[[BuildRequest], Any]) -> None:
        self.link = link
        self._build = build

    def me(self) -> Any:
        return weakref.ref(threading.current_thread())

    def waiter(self) -> _ThreadWaiter:
        return _ThreadWaiter()

    async def build(self, request: BuildRequest) -> Any:
        return self._build(request)

    async def blocking(self, action: Callable[[], T]) -> T:
        return action()

    async def resolve(self, awaitable: Awaitable[T], seconds: float) -> T:
        with ThreadPoolExecutor(1) as thread:  # an event loop may run in this one
            return thread.submit(asyncio.run, bounded(awaitable, seconds)).result()

    async def finish(self, flow: Coroutine[Any, Any, T]) -> T:
        return await flow


class _ThreadWaiter:
    def __init__(self) -> None:
        self._woken = threading.Event()
        self.wake = self._woken.set

    async def wait(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()
