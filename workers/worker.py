"""`Worker`: for programs that use threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

from coordinator import operations as ops
from coordinator.limits import Limits
from coordinator.link import SyncLink, run
from coordinator.scripts import Script
from workers import turns
from workers.engine import Engine
from workers.lifecycle import Lifecycle
from workers.signals import DrainOnTerminate
from workers.turns import BuildRequest, TurnState

T = TypeVar("T")


class Turn(TurnState):
    """One exclusive use of a session's agent: `with worker.turn(...) as turn`."""

    _io: _ThreadIO

    def __enter__(self) -> Self:
        run(turns.open_turn(self._engine, self._io, self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(turns.close_turn(self._engine, self._io, self, error))

    def rebind(self, key: str) -> None:
        """Move the turn's lease to another key: its conversation id rotated."""
        run(turns.rebind(self._engine, self._io, self, key))


class Worker:
    """A process that holds agents; `build(request)` makes one. Settings are arguments, else GREENROOM_*."""

    def __init__(
        self,
        build: Callable[[BuildRequest], Any],
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
        self._io: _ThreadIO | None = None

    @property
    def id(self) -> str:
        return self._engine.worker

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

    def close(self) -> None:
        """Drain and leave: turns end, copies are released, the worker is deregistered. May be called again."""
        self._engine.leave()
        self._signals.remove()
        if self._io:
            run(self._io.link.close())

    def turn(
        self,
        session: str,
        config: str | Mapping[str, Any] | None = None,
        *,
        wait: float = 30.0,
        affinity: bool = False,
        lease_key: str | None = None,
        floor: int = 0,
    ) -> Turn:
        """A turn on a session. Waits up to `wait` seconds for a busy one; 0 raises SessionBusy at once.

        `config` is a signature, or a mapping whose `model`, `runtime`, `toolsets`, `ephemeral_prompt` and `extra` are
        signed; the rest of it is for the builder. `affinity`: raise SessionElsewhere rather than move a warm agent
        here. `lease_key`: also hold this name, a resolved conversation id. `floor`: a fence that this one must exceed.
        """
        turn = Turn(self._engine, session, config, wait, affinity, lease_key, floor)
        turn._io = self._started()
        return turn

    def evict(self, session: str, mode: str = "soft", reason: str = "reset") -> bool:
        """Evict a session's agent wherever it is; hard: the session is over. False when nobody holds one."""
        self._engine.check_eviction(session, mode, reason)
        answer = run(ops.evict(self._started().link, session, mode, reason, self.id))
        return self._engine.evicted(session, mode, reason, answer)

    def interrupt(self, session: str) -> bool:
        """Ask the turn that runs on a session to stop, wherever it runs. False when none does."""
        self._engine.check_session(session)
        return run(ops.interrupt(self._started().link, session))

    def sweep(self) -> int:
        """Evict what has been idle for longer than idle_ttl; how many went."""
        return run(ops.maintain(self._started().link, "sweep", self._engine.limits)).idle

    @property
    def resident(self) -> list[str]:
        """Sessions whose agents are held here, the least recently used first."""
        return [copy.session for copy in self._engine.copies]

    def _started(self) -> _ThreadIO:
        self._engine.check_process()
        assert self._io is not None
        return self._io


class _ThreadIO:
    """How a flow waits, builds and finishes in a thread."""

    def __init__(self, link: SyncLink, build: Callable[[BuildRequest], Any]) -> None:
        self.link = link
        self._build = build

    def waiter(self) -> _ThreadWaiter:
        return _ThreadWaiter()

    async def build(self, request: BuildRequest) -> Any:
        return self._build(request)

    async def blocking(self, action: Callable[[], T]) -> T:
        return action()

    async def released(self, release: Future[None], seconds: float) -> None:
        with contextlib.suppress(Exception):
            release.exception(seconds)

    async def finish(self, flow: Coroutine[Any, Any, T]) -> T:
        return await flow


class _ThreadWaiter:
    def __init__(self) -> None:
        self._woken = threading.Event()
        self.wake = self._woken.set

    async def wait(self, seconds: float) -> None:
        self._woken.wait(seconds)
        self._woken.clear()
