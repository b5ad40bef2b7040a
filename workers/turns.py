"""What a turn is, and what its flows need from the outside (`workers/flows.py` has the flows).

`workers/worker.py` and `workers/aio.py` each bring an `IO`, and a turn of their own.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from coordinator.link import Link
from coordinator.names import mode_name, reason_name, session_name
from coordinator.signature import sign
from workers.copies import Copy

if TYPE_CHECKING:
    from workers.engine import Engine

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """What the builder gets."""

    session: str
    config: Any = field(repr=False)  # may hold credentials
    signature: str
    snapshot: Any = field(repr=False)
    fence: int


class Waiter(Protocol):
    """Waits in line. `wake` may be called from any thread, also before `wait`."""

    def wake(self) -> None: ...

    async def wait(self, seconds: float) -> None: ...


@dataclass(slots=True)
class InUse:
    """The copy a turn uses. Apart from the turn, so that it can be let go of when the turn itself is gone."""

    copy: Copy | None = None


class IO(Protocol):
    """What differs between threads and asyncio."""

    @property
    def link(self) -> Link:
        """The way to Redis."""

    def me(self) -> Any:
        """The thread or the task that asks."""

    def waiter(self) -> Waiter:
        """Something to wait with until the session is free."""

    async def build(self, request: BuildRequest) -> Any:
        """Call the builder."""

    async def blocking(self, action: Callable[[], T]) -> T:
        """Run something that blocks."""

    async def resolve(self, awaitable: Awaitable[T], seconds: float) -> T:
        """Await what a hook returned, for so long at most."""

    async def finish(self, flow: Coroutine[Any, Any, T]) -> T:
        """Run a flow to its end even if the caller is cancelled meanwhile."""


class TurnState:
    """One exclusive use of a session's agent. Base of what `turn()` gives out."""

    _io: IO

    def __init__(
        self,
        engine: Engine,
        session: str,
        config: Any,
        wait: float,
        affinity: bool,
        lease_key: str | None,
        floor: int,
        on_error: str,
        line: int,
        place: bool,
        avoid: Collection[str],
        message: str | None,
        delivery: str | None,
    ) -> None:
        self._engine = engine
        self.session = session_name(session)
        self.config = config
        self.signature = sign(config, engine.settings.signature_key or None)
        self._key = session_name(lease_key, "lease key") if lease_key is not None else ""
        self._wait = _seconds(wait)
        self._affinity = affinity
        if isinstance(floor, bool) or not isinstance(floor, int) or not 0 <= floor < 2**53 - 2**40:
            raise ValueError(f"floor must be a fence: a whole number from 0 to 2**53, not {ascii(floor)[:40]}")
        self._floor = floor
        if on_error not in ("keep", "evict"):
            raise ValueError(f"on_error is 'keep' or 'evict', not {ascii(on_error)[:40]}")
        self._on_error = on_error
        self._line, self._place, self._avoid = line, place, avoid
        self._message = _message(message, delivery)
        self._named = message is not None
        self.id = f"{engine.worker}/{secrets.token_hex(8)}{self._message}"
        self.answer = ""  #: what whoever delivers the message again is to be told
        self.fence = 0
        self.fresh = False
        self.lost = False
        self._began = self._renewed = 0.0
        self._owner: Any = None
        self._in_use = InUse()
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._evict = ""

    @property
    def _copy(self) -> Copy | None:
        return self._in_use.copy

    @property
    def _names(self) -> set[str]:
        """Everything the turn holds, or wants to."""
        return {self.session, self._key} - {""}

    @property
    def agent(self) -> Any:
        """The agent, for as long as the turn runs."""
        if self._copy is None:
            raise RuntimeError("the turn is over, or has not begun: its agent is not yours to use")
        return self._copy.agent

    def evict_after(self, reason: str = "fallback", mode: str = "soft") -> None:
        """Evict this agent when the turn ends, so that the next message builds another one."""
        self._evict = f"{mode_name(mode)} {reason_name(reason)}"

    def interrupt(self) -> None:
        """Ask this turn's agent to stop soon. Returns at once; does nothing if the turn is over."""
        self._engine.running.interrupt(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session!r} fence={self.fence}{' lost' if self.lost else ''}>"


def _seconds(wait: float) -> float:
    if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 <= wait < float("inf"):
        raise ValueError(f"wait must be a number of seconds, zero or more, not {ascii(wait)[:40]}")
    return float(wait)


def _message(message: str | None, delivery: str | None) -> str:
    """How a turn's id ends: with the delivery and the message that it is for, if any (see lua/lib/message_of). Where a
    message has no name, each delivery is one of its own."""
    if delivery is not None and not re.fullmatch("[0-9a-f]{28}", delivery):
        raise ValueError(f"a delivery is what SessionElsewhere says, not {ascii(delivery)[:40]}")
    if message is None:
        return f"/{delivery}/{delivery}" if delivery else ""
    if not isinstance(message, str) or not message:
        raise ValueError("a message's name is a text that is not empty")
    digest = hashlib.blake2b(message.encode(errors="surrogatepass"), digest_size=16).hexdigest()
    return f"/{delivery or ''}/{digest}"


def new_delivery(at: int) -> str:
    """The id of a delivery that was made at that time, ms (see lua/lib/delivery)."""
    return f"{at:012x}{secrets.token_hex(8)}"


#: A builder: sync for both workers, or async for an AsyncWorker.
Build = Callable[[BuildRequest], Any] | Callable[[BuildRequest], Awaitable[Any]]
