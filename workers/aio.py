"""`AsyncWorker`: for asyncio. The same flows as `Worker`, awaited; beat, listener and releases stay threads."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from coordinator import operations as ops
from coordinator.limits import Limits
from coordinator.link import AsyncLink
from coordinator.scripts import Script
from workers import turns
from workers.copies import Copy
from workers.engine import Engine
from workers.lifecycle import Lifecycle
from workers.signals import DrainOnTerminate
from workers.turns import Build, BuildRequest, TurnState

T = TypeVar("T")


class AsyncTurn(TurnState):
    """One exclusive use of a session's agent: `async with worker.turn(...) as turn`."""

    _io: _LoopIO

    async def __aenter__(self) -> Self:
        await turns.open_turn(self._engine, self._io, self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._io.finish(turns.close_turn(self._engine, self._io, self, error))

    async def rebind(self, key: str) -> None:
        """Move the turn's lease to another key: its conversation id rotated."""
        await turns.rebind(self._engine, self._io, self, key)


class AsyncWorker:
    """A process that holds agents, on one event loop. A plain `build` runs in a thread, an async one on the loop."""

    def __init__(
        self,
        build: Build,
        *,
        redis: Any = None,
        room: str | None = None,
        worker: str | None = None,
        limits: Limits | None = None,
        lifecycle: Lifecycle | None = None,
        scripts: Mapping[str, Script] | None = None,
        **settings: Any,
    ) -> None:
        self._engine = Engine(
            redis, room, worker=worker, limits=limits, lifecycle=lifecycle, scripts=scripts, settings=settings
        )
        self._build = build
        self._scripts = scripts
        self._signals = DrainOnTerminate(self._engine.leave)
        self._io: _LoopIO | None = None

    @property
    def id(self) -> str:
        return self._engine.worker

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Join the room."""
        self._engine.loop = asyncio.get_running_loop()
        try:
            await _whole(asyncio.to_thread(self._engine.start))
        except asyncio.CancelledError:
            await _whole(asyncio.to_thread(self._engine.leave))
            raise
        self._io = _LoopIO(self._engine, AsyncLink(self._engine.settings, self._scripts), self._build)
        self._signals.install()

    async def close(self) -> None:
        """Drain and leave: turns end, copies are released, the worker is deregistered. May be called again."""
        await _whole(self._close())

    async def _close(self) -> None:
        await asyncio.to_thread(self._engine.leave)
        self._signals.remove()
        if self._io:
            await self._io.link.close()

    def turn(
        self,
        session: str,
        config: str | Mapping[str, Any] | None = None,
        *,
        wait: float = 30.0,
        affinity: bool = False,
        lease_key: str | None = None,
        floor: int = 0,
    ) -> AsyncTurn:
        """A turn on a session. Waits up to `wait` seconds for a busy one; 0 raises SessionBusy at once.

        `config` is a signature, or a mapping whose `model`, `runtime`, `toolsets`, `ephemeral_prompt` and `extra` are
        signed; the rest of it is for the builder. `affinity`: raise SessionElsewhere rather than move a warm agent
        here. `lease_key`: also hold this name, a resolved conversation id. `floor`: a fence that this one must exceed.
        """
        turn = AsyncTurn(self._engine, session, config, wait, affinity, lease_key, floor)
        turn._io = self._started()
        return turn

    async def evict(self, session: str, mode: str = "soft", reason: str = "reset") -> bool:
        """Evict a session's agent wherever it is; hard: the session is over. False when nobody holds one."""
        self._engine.check_eviction(session, mode, reason)
        answer = await ops.evict(self._started().link, session, mode, reason, self.id)
        return self._engine.evicted(session, mode, reason, answer)

    async def interrupt(self, session: str) -> bool:
        """Ask the turn that runs on a session to stop, wherever it runs. False when none does."""
        self._engine.check_session(session)
        return await ops.interrupt(self._started().link, session)

    async def sweep(self) -> int:
        """Evict what has been idle for longer than idle_ttl; how many went."""
        done = await ops.maintain(self._started().link, "sweep", self._engine.limits)
        return done.idle

    @property
    def resident(self) -> list[str]:
        """Sessions whose agents are held here, the least recently used first."""
        return [copy.session for copy in self._engine.copies]

    def _started(self) -> _LoopIO:
        self._engine.check_process()
        assert self._io is not None
        return self._io


class _LoopIO:
    """How a flow waits, builds and finishes on an event loop."""

    def __init__(self, engine: Engine, link: AsyncLink, build: Build) -> None:
        self.link = link
        self._engine = engine
        self._build = build

    def waiter(self) -> _LoopWaiter:
        return _LoopWaiter()

    async def build(self, request: BuildRequest) -> Any:
        """A plain builder runs in a thread. If nobody waits for its agent any more, it is released."""
        if inspect.iscoroutinefunction(self._build):
            return await self._build(request)
        building = asyncio.get_running_loop().run_in_executor(None, self._build, request)
        try:
            agent = await asyncio.shield(building)
        except asyncio.CancelledError:
            building.add_done_callback(lambda done: self._unwanted(request, done))
            raise
        return await agent if inspect.isawaitable(agent) else agent

    def _unwanted(self, request: BuildRequest, building: asyncio.Future[Any]) -> None:
        if not building.cancelled() and building.exception() is None:
            agent = building.result()
            copy = Copy(request.session, request.fence, request.signature, agent, mode="soft", reason="lost")
            self._engine.release(copy)

    async def blocking(self, action: Callable[[], T]) -> T:
        return await asyncio.to_thread(action)

    async def released(self, release: Future[None], seconds: float) -> None:
        waiting = asyncio.wrap_future(release)
        await asyncio.wait({waiting}, timeout=seconds)
        if waiting.done() and not waiting.cancelled():
            waiting.exception()  # it was seen

    async def finish(self, flow: Coroutine[Any, Any, T]) -> T:
        return await _whole(flow)


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


async def _whole(flow: Coroutine[Any, Any, T]) -> T:
    """Run a flow to its end. If we are cancelled meanwhile, the flow ends first, and then we are."""
    task = asyncio.ensure_future(flow)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # it was seen
        raise cancelled
    return task.result()
