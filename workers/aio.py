"""`AsyncWorker`: for asyncio. The same flows as `Worker`, awaited; beat, listener and releases stay threads.

Nothing here uses the loop's default executor: the application may have filled it (H14).
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

from coordinator import operations as ops
from coordinator.errors import GreenroomError
from coordinator.link import AsyncLink
from workers import flows
from workers.base import BaseWorker
from workers.copies import Copy
from workers.departures import bounded
from workers.engine import Engine
from workers.turns import Build, BuildRequest, TurnState

T = TypeVar("T")

#: Threads for what blocks: joining and leaving.
CHORES = 4


class AsyncTurn(TurnState):
    """One exclusive use of a session's agent: `async with worker.turn(...) as turn`."""

    async def __aenter__(self) -> Self:
        await flows.enter_turn(self._engine, self._io, self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._io.finish(flows.leave_turn(self._engine, self._io, self, error))

    async def rebind(self, key: str) -> None:
        """Move the turn's lease to another key: its conversation id rotated."""
        await flows.rebind(self._engine, self._io, self, key)


class AsyncWorker(BaseWorker["_LoopIO", AsyncTurn]):
    """A process that holds agents, on one event loop. A plain `build` runs in a thread, an async one on the loop."""

    _turn = AsyncTurn
    _leaving: asyncio.Task[None] | None = None  # asked for from inside a turn

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the room."""
        loop = self._engine.departures.loop = asyncio.get_running_loop()
        self._chores = ThreadPoolExecutor(CHORES, "greenroom-chore")
        starting = loop.run_in_executor(self._chores, self._engine.start)
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._engine.call_off()
            with contextlib.suppress(GreenroomError):
                await whole(starting)
            await whole(loop.run_in_executor(self._chores, self._engine.leave))
            raise
        self._io = _LoopIO(self._engine, AsyncLink(self._engine.settings, self._scripts), self._build, self._chores)
        self._signals.install()

    async def drain(self) -> None:
        """Take no new sessions, and let idle agents go. The worker stays in the room until it is closed."""
        self._running()
        await asyncio.get_running_loop().run_in_executor(self._chores, self._engine.drain)

    async def close(self) -> None:
        """Drain and leave: turns end, copies are released, the worker is deregistered. May be called again. From inside
        a turn it returns at once, and is carried out when that turn is over."""
        if self._engine.foreign:
            return
        if self._io and flows.own_turns(self._engine, self._io):
            self._engine.draining = True
            self._leaving = asyncio.create_task(self.close())
            return
        await whole(self._leave())

    async def _leave(self) -> None:
        if self._engine.started:
            await asyncio.get_running_loop().run_in_executor(self._chores, self._engine.leave)
        self._signals.remove()
        if self._io:
            await self._io.dismiss()

    async def evict(self, session: str, mode: str = "soft", reason: str = "reset") -> bool:
        """Evict a session's agent wherever it is; hard: the session is over. False when nobody holds one."""
        self._engine.check_eviction(session, mode, reason)
        answer = await ops.evict(self._running().link, session, mode, reason, self.id)
        return self._engine.evicted(session, mode, reason, answer)

    async def interrupt(self, session: str, fence: int = 0) -> bool:
        """Ask the turn that runs on a session, or only the one with this fence, to stop, wherever it runs. False when
        none does."""
        self._engine.check_session(session)
        return await ops.interrupt(self._running().link, session, fence)

    async def known(self) -> bool:
        """Whether Redis can be reached, and knows this worker."""
        link = self._running().link
        return bool(await link.read("ZSCORE", link.keys.workers, self.id))

    async def sweep(self) -> int:
        """Evict what has been idle for longer than idle_ttl; how many went."""
        done = await ops.maintain(self._running().link, "sweep", self._engine.limits)
        return done.idle


class _LoopIO:
    """How a flow waits, builds and finishes on an event loop."""

    def __init__(self, engine: Engine, link: AsyncLink, build: Build, chores: ThreadPoolExecutor) -> None:
        self.link = link
        self._engine = engine
        self._build = build
        self._chores = chores
        self._builds = ThreadPoolExecutor(engine.settings.build_threads, "greenroom-build")

    async def dismiss(self) -> None:
        self._builds.shutdown(wait=False)
        await self.link.disconnect()

    def me(self) -> Any:
        task = asyncio.current_task()
        return weakref.ref(task) if task else None

    def waiter(self) -> _LoopWaiter:
        return _LoopWaiter()

    async def build(self, request: BuildRequest) -> Any:
        """A plain builder runs in a thread. If nobody waits for its agent any more, it is released."""
        if inspect.iscoroutinefunction(self._build):
            return await self._build(request)
        building = asyncio.get_running_loop().run_in_executor(self._builds, self._called, request)
        try:
            agent = await asyncio.shield(building)
        except asyncio.CancelledError:
            building.add_done_callback(lambda done: self._unwanted(request, done))
            raise
        return await agent if inspect.isawaitable(agent) else agent

    def _called(self, request: BuildRequest) -> Any:
        try:
            return self._build(request)
        except StopIteration as error:  # no Future brings one back: whoever waits would wait for ever
            raise RuntimeError("the builder raised StopIteration") from error

    def _unwanted(self, request: BuildRequest, building: asyncio.Future[Any]) -> None:
        if not building.cancelled() and building.exception() is None:
            agent = building.result()
            copy = Copy(request.session, request.fence, request.signature, agent, mode="soft", reason="lost")
            self._engine.departures.release(copy)

    async def blocking(self, action: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._chores, action)

    async def resolve(self, awaitable: Awaitable[T], seconds: float) -> T:
        return await bounded(awaitable, seconds)

    async def finish(self, flow: Coroutine[Any, Any, T]) -> T:
        return await whole(flow)


class _LoopWaiter:
    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._woken.set)

    async def wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()


async def whole(flow: Awaitable[T], on_cancel: Callable[[], object] = lambda: None) -> T:
    """Run a flow to its end. If we are cancelled meanwhile, the flow ends first, and then we are."""
    task = asyncio.ensure_future(flow)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            on_cancel()
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # it was seen
        raise cancelled
    return task.result()
