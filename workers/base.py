"""What `Worker` and `AsyncWorker` have in common: everything that does not wait."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Generic, TypeVar

from coordinator.limits import Limits
from coordinator.scripts import Script
from workers.engine import Engine
from workers.lifecycle import Lifecycle
from workers.signals import DrainOnTerminate
from workers.turns import IO, Build, TurnState

AnyIO = TypeVar("AnyIO", bound=IO)
AnyTurn = TypeVar("AnyTurn", bound=TurnState)


class BaseWorker(Generic[AnyIO, AnyTurn]):
    """A process that holds agents; `build(request)` makes one. Settings are arguments, else GREENROOM_*."""

    _turn: type[AnyTurn]

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
        self._io: AnyIO | None = None

    @property
    def id(self) -> str:
        return self._engine.worker

    @property
    def instance(self) -> str:
        """Which start of the worker this is: `SessionElsewhere` says which one it means."""
        return self._engine.instance

    @property
    def draining(self) -> bool:
        """Whether this worker takes no new sessions: it was told to drain, or is about to leave."""
        return self._engine.draining

    @property
    def resident(self) -> list[str]:
        """Sessions whose agents are held here, the least recently used first."""
        return [copy.session for copy in self._engine.copies]

    def turn(
        self,
        session: str,
        config: str | Mapping[str, Any] | None = None,
        *,
        wait: float = 30.0,
        affinity: bool = False,
        lease_key: str | None = None,
        floor: int = 0,
        on_error: str = "keep",
        line: int = 0,
        place: bool = False,
        avoid: Collection[str] = (),
        message: str | None = None,
        delivery: str | None = None,
    ) -> AnyTurn:
        """A turn on a session. Waits up to `wait` seconds for a busy one; 0 raises SessionBusy at once.

        `config` is a signature, or a mapping whose `model`, `runtime`, `toolsets`, `ephemeral_prompt` and `extra` are
        signed; the rest of it is for the builder. `affinity`: raise SessionElsewhere rather than move a warm agent
        here. `lease_key`: also hold this name, a resolved conversation id. `floor`: a fence that this one must exceed.
        `on_error`: whether a turn whose body raised keeps its agent ('keep') or lets it go ('evict').
        `line`: wait only if fewer than so many do (0: any number). `place`: raise SessionElsewhere also for a session
        that nobody holds, if another worker has more room for it, and is none of those in `avoid`. `message`: what its
        sender calls the message that the turn is for; delivered again, it gets MessageAnswered with the `answer` that
        the turn was given, and runs no second turn. `delivery`: that of a SessionElsewhere, for the turn there and for
        one here: one of them runs.
        """
        io = self._running()
        asked = (wait, affinity, lease_key, floor, on_error, line, place, avoid, message, delivery)
        turn = self._turn(self._engine, session, config, *asked)
        turn._io = io
        return turn

    def _running(self) -> AnyIO:
        self._engine.check_running()
        assert self._io is not None
        return self._io
