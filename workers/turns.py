"""A turn from begin to end: one flow for threads and asyncio.

The flows are written against an `IO`: how to wait, how to build, how to finish what must not be cut off.
`workers/worker.py` and `workers/aio.py` each bring one.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from coordinator import operations as ops
from coordinator.codec import pack, unpack
from coordinator.errors import (
    BuildFailed,
    CoordinatorUnavailable,
    LeaseLost,
    SessionBusy,
    SessionElsewhere,
    UnknownWorker,
    WorkerDraining,
)
from coordinator.link import Link
from coordinator.names import mode_name, reason_name, session_name
from coordinator.signature import sign
from workers.copies import Copy

if TYPE_CHECKING:
    from workers.engine import Engine

logger = logging.getLogger("greenroom.turns")
T = TypeVar("T")

#: A snapshot of nothing: msgpack's nil.
NO_SNAPSHOT = b"\xc0"


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
class Hold:
    """The copy a turn uses. Apart from the turn, so that it can be let go of when the turn itself is gone."""

    copy: Copy | None = None


class IO(Protocol):
    """What differs between threads and asyncio."""

    @property
    def link(self) -> Link:
        """The way to Redis."""

    def waiter(self) -> Waiter:
        """Something to wait with until the session is free."""

    async def build(self, request: BuildRequest) -> Any:
        """Call the builder."""

    async def blocking(self, action: Callable[[], T]) -> T:
        """Run something that blocks."""

    async def released(self, release: Future[None], seconds: float) -> None:
        """Until a release is over, however it went, or for so long."""

    async def finish(self, flow: Coroutine[Any, Any, T]) -> T:
        """Run a flow to its end even if the caller is cancelled meanwhile."""


class TurnState:
    """One exclusive use of a session's agent. Base of what `turn()` gives out."""

    def __init__(
        self,
        engine: Engine,
        session: str,
        config: Any,
        wait: float,
        affinity: bool,
        lease_key: str | None,
        floor: int,
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
        self.id = f"{engine.worker}/{secrets.token_hex(8)}"
        self.fence = 0
        self.fresh = False
        self.lost = False
        self._renewed = 0.0
        self._hold = Hold()
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._evict = ""

    @property
    def _copy(self) -> Copy | None:
        return self._hold.copy

    @property
    def agent(self) -> Any:
        """The agent, for as long as the turn runs."""
        if self._copy is None:
            raise RuntimeError("the turn is over, or has not begun: its agent is not yours to use")
        return self._copy.agent

    def evict_after(self, reason: str = "fallback", mode: str = "soft") -> None:
        """Evict this agent when the turn ends, so that the next message builds another one."""
        self._evict = f"{mode_name(mode)} {reason_name(reason)}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session!r} fence={self.fence}{' lost' if self.lost else ''}>"


async def open_turn(engine: Engine, io: IO, turn: TurnState) -> None:
    """Begin; wait in line if need be; build if there is no warm copy."""
    engine.check_process()
    granted, copy = await _begin(engine, io, turn)
    if granted.fresh:
        await _build(engine, io, turn, granted, copy)
    else:
        assert copy is not None  # pinned since before we asked: it is the generation that Redis speaks of
        _use(turn, copy)


async def _begin(engine: Engine, io: IO, turn: TurnState) -> tuple[ops.Granted, Copy | None]:
    """Until the turn has its lease. The copy that was offered comes back pinned."""
    deadline = time.monotonic() + turn._wait
    waiter = io.waiter()
    engine.on_wake(turn.id, waiter.wake)
    poll = engine.settings.lease / 3
    queue = int((poll + engine.settings.lease / 3) * 1000) if turn._wait else 0
    copy: Copy | None = None
    asked, rejoined = False, 0
    try:
        while True:
            copy = engine.copies.pin(turn.session)
            sent, asked = engine.now(), True
            try:
                reply = await ops.begin(
                    io.link,
                    session=turn.session,
                    worker=engine.worker,
                    turn=turn.id,
                    signature=turn.signature,
                    generation=copy.generation if copy else 0,
                    lease=engine.lease_ms,
                    floor=max(engine.floor, turn._floor),
                    key=turn._key,
                    queue=queue,
                    affinity=turn._affinity,
                )
            except UnknownWorker:
                rejoined += 1
                if rejoined > 3:
                    raise
                await io.blocking(engine.rejoin)
                reply = None
            if isinstance(reply, ops.Granted):
                turn.fence, turn.fresh, turn._renewed = reply.fence, reply.fresh, sent
                engine.open(turn)
                return reply, copy
            if copy:
                engine.unpin(copy)
                copy = None
            if isinstance(reply, ops.Elsewhere):
                raise SessionElsewhere(reply.worker, reply.address)
            if reply is None:
                continue
            left = deadline - time.monotonic()
            if left <= 0:
                asked = bool(queue)
                raise SessionBusy(turn.session, reply.worker, reply.left, reply.running)
            # No longer than the lease in the way: whoever holds it may be dead, and then nobody wakes us.
            await waiter.wait(min(left, poll, reply.left + 0.01 if reply.left else poll))
    except BaseException as error:
        counts = copy is not None and engine.counts(copy)
        if copy:
            engine.unpin(copy)
        if asked:  # the lease may be ours without our knowing, or our place in line is still there
            await _abandon(engine, io, turn, error, counts)
        raise
    finally:
        engine.forget_wake(turn.id)


async def _build(engine: Engine, io: IO, turn: TurnState, granted: ops.Granted, old: Copy | None) -> None:
    """Build, and enter the copy into the room. Whatever fails leaves no lease, no record and no agent."""
    request = BuildRequest(turn.session, turn.config, turn.signature, _kept(engine, granted), granted.fence)
    copy: Copy | None = None
    try:
        if old:
            await _supersede(engine, io, old)
        if closing := engine.closing(turn.session):  # it tears down what belongs to the session id: it goes first
            await io.released(closing, engine.settings.release_limit)
        try:
            agent = await io.build(request)
        except Exception as error:
            raise BuildFailed(f"the builder raised {type(error).__name__}") from error
        copy = Copy(turn.session, granted.generation, turn.signature, agent, saved=_digest(granted.snapshot))
        _use(turn, copy)
        engine.copies.add(copy)
        try:
            over = await ops.commit(io.link, turn.session, turn.id, engine.limits)
        except UnknownWorker:
            await io.blocking(engine.rejoin)
            over = await ops.commit(io.link, turn.session, turn.id, engine.limits)
        engine.warn_over(over)
    except BaseException as error:
        turn._hold.copy = None
        engine.close(turn)
        mode = "soft"
        try:
            if not isinstance(error, LeaseLost) and await _abandon(engine, io, turn, error):
                mode = "hard"
        finally:
            if copy:
                engine.discard(copy.session, copy.generation, mode, "lost")
                engine.unpin(copy)
            elif mode == "hard":
                engine.end_session(turn.session, turn.fence)
            engine.finished(turn.id)
        raise


def _use(turn: TurnState, copy: Copy) -> None:
    """The turn has its agent. The copy remembers whose it is until the turn has ended, and is claimed with it."""
    copy.turn = (turn.id, turn.fence, turn._key)
    turn._hold.copy = copy


async def _supersede(engine: Engine, io: IO, old: Copy) -> None:
    """Our copy is not the session's any more. If a reset's message is still on its way, it is a hard close."""
    mode = "soft"
    try:
        mode = await ops.closing_mode(io.link, old.session, engine.worker, old.generation)
    finally:
        engine.discard(old.session, old.generation, mode, "moved")
        engine.unpin(old)


async def close_turn(engine: Engine, io: IO, turn: TurnState, error: BaseException | None) -> None:
    """End the turn; not to be cut off. Raises LeaseLost if its claim was lost, unless the body raised already."""
    copy = turn._copy
    assert copy is not None
    snapshot = _snapshot(engine, copy)
    counts, told = engine.counts(copy), copy.told
    turn._hold.copy = None
    engine.close(turn)
    evict = turn._evict or ("soft drain" if engine.draining else "")
    if turn.lost:
        snapshot, evict = b"", "soft lost"

    async def end() -> ops.Ended:
        ttl = int(engine.settings.snapshot_ttl * 1000)
        named = {"counts": counts, "evict": evict, "snapshot": snapshot, "snapshot_ttl": ttl}
        return await ops.end(io.link, turn.session, turn.id, engine.limits, **named)  # type: ignore[arg-type]

    try:
        try:
            ended = await end()
        except UnknownWorker:  # Redis lost its state, or took us for dead: show what we hold, this turn too, and repeat
            await io.blocking(engine.rejoin)
            ended = await end()
    except (LeaseLost, WorkerDraining):
        turn.lost = True
        engine.discard(copy.session, copy.generation, "soft", "lost")
    except CoordinatorUnavailable:
        copy.open = True
        if turn.lost:
            engine.discard(copy.session, copy.generation, "soft", "lost")
        elif error is None:
            raise  # whether the end was accepted is open: the copy stays, and Redis's record decides at the next begin
        logger.warning("the end of a turn did not reach Redis: %r", turn)
    else:
        copy.open = False
        engine.warn_over(ended.over)
        if ended.mode:
            engine.discard(copy.session, copy.generation, ended.mode, ended.reason)
        else:
            if snapshot:
                copy.saved, copy.saved_at = _digest(snapshot), engine.now()
            engine.copies.touch(copy, told)
    finally:
        copy.turn = None
        engine.unpin(copy)
        engine.finished(turn.id)
    if turn.lost and error is None:
        raise LeaseLost(f"the lease on {turn.session!r} was lost during the turn; its end was not accepted")


async def rebind(engine: Engine, io: IO, turn: TurnState, key: str) -> None:
    """Move a running turn's lease to another key. SessionBusy leaves it where it is."""
    session_name(key, "lease key")
    if turn._copy is None:
        raise RuntimeError("the turn is over: there is no lease to move")
    if busy := await ops.rebind(io.link, turn.session, turn.id, key):
        raise SessionBusy(key, busy.worker, busy.left, busy.running)
    turn._key = key
    _use(turn, turn._copy)


async def _abandon(engine: Engine, io: IO, turn: TurnState, error: BaseException, counts: bool = False) -> bool:
    """Leave nothing behind; True if the session was reset meanwhile. If Redis was just away, it is asked once only."""
    retry = not isinstance(error, CoordinatorUnavailable)
    flow = ops.abandon(io.link, turn.session, turn.id, engine.limits, turn._key, counts=counts, retry=retry)
    try:
        return await io.finish(flow)
    except CoordinatorUnavailable:
        logger.warning("a turn could not be abandoned, its lease has to run out: %r", turn)
        return False


def _kept(engine: Engine, granted: ops.Granted) -> Any:
    """What the last turn kept for a rebuild. One that cannot be read is as good as none."""
    try:
        return unpack(granted.snapshot, engine.settings.snapshot_limit) if granted.snapshot else None
    except ValueError as error:
        logger.warning("%s: the agent comes back cold", error)
        return None


def _snapshot(engine: Engine, copy: Copy) -> bytes:
    """What to send so that Redis has this agent's snapshot; b'' if it has it already."""
    try:
        value = engine.lifecycle.snapshot(copy.agent)
        data = b"" if value is None else pack(value, engine.settings.snapshot_limit)
    except Exception:
        logger.exception("no snapshot of %r: its next build elsewhere will be cold", copy.session)
        data = b""
    if not data:
        return NO_SNAPSHOT if copy.saved else b""  # an old one would be handed out as if it were this agent's
    old = not copy.saved_at or engine.now() - copy.saved_at > engine.settings.snapshot_ttl / 2
    return data if old or _digest(data) != copy.saved else b""


def _digest(snapshot: bytes) -> bytes:
    """What a copy remembers of the snapshot that Redis has; b'' for none."""
    return hashlib.blake2b(snapshot, digest_size=16).digest() if snapshot not in (b"", NO_SNAPSHOT) else b""


def _seconds(wait: float) -> float:
    if isinstance(wait, bool) or not isinstance(wait, (int, float)) or not 0 <= wait < float("inf"):
        raise ValueError(f"wait must be a number of seconds, zero or more, not {ascii(wait)[:40]}")
    return float(wait)


#: A builder: sync for both workers, or async for an AsyncWorker.
Build = Callable[[BuildRequest], Any] | Callable[[BuildRequest], Awaitable[Any]]
