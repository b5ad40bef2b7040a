"""A turn from begin to end: one flow for threads and asyncio.

Written against an `IO` (`workers/turns.py`): how to wait, how to build, how to finish what must not be cut off.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from coordinator import operations as ops
from coordinator.answers import Answered, Died, Elsewhere, Ended, Granted
from coordinator.errors import (
    BuildFailed,
    CoordinatorUnavailable,
    LeaseLost,
    MessageAnswered,
    SessionBusy,
    SessionElsewhere,
    UnknownWorker,
    WorkerDraining,
)
from coordinator.names import session_name
from workers import snapshots
from workers.copies import Copy
from workers.running import now
from workers.turns import IO, BuildRequest, TurnState, new_delivery

if TYPE_CHECKING:
    from workers.engine import Engine

logger = logging.getLogger("greenroom.turns")
T = TypeVar("T")

#: How often a call is repeated that Redis refused because it does not know this worker.
JOINS = 3
#: Batches that the end of a turn looks at by itself when a cap has more above it than one call looks at.
TRIMS = 64

#: Ids of the turns that were begun in this context; some may be over. A thread that `asyncio.to_thread` lends out sees
#: none of those that others began in it.
_begun: ContextVar[frozenset[str]] = ContextVar("greenroom_turns", default=frozenset())


def own_turns(engine: Engine, io: IO) -> list[TurnState]:
    """Turns that the calling thread or task is in the middle of."""
    return [
        turn for turn in engine.running.turns() if turn.id in _begun.get() and turn._owner == io.me() and not turn.lost
    ]


async def enter_turn(engine: Engine, io: IO, turn: TurnState) -> None:
    """Begin; wait in line if need be; build if there is no warm copy. A turn that is lost by then does not open."""
    engine.check_running()
    granted, offered = await _begin(engine, io, turn)
    copy = None if granted.fresh else offered
    try:
        if granted.fresh:
            copy = await _build(engine, io, turn, granted, offered)
            entered = await _known(engine, io, lambda: ops.commit(io.link, turn.session, turn.id, engine.limits))
            await _trim(engine, io, entered)
        else:
            assert copy is not None  # pinned since before we asked: it is the generation that Redis speaks of
            _use(turn, copy)
        engine.running.fence(turn)
        if turn.lost:
            raise LeaseLost(f"the lease on {turn.session!r} was lost before its turn could open")
    except BaseException as error:
        if not engine.foreign:
            await _give_up(engine, io, turn, copy, error)
        raise
    _begun.set(frozenset(one.id for one in own_turns(engine, io)) | {turn.id})


async def _begin(engine: Engine, io: IO, turn: TurnState) -> tuple[Granted, Copy | None]:
    """Until the turn has its lease. The copy that was offered comes back pinned."""
    deadline = time.monotonic() + turn._wait
    waiter = io.waiter()
    engine.line.enter(turn.id, waiter.wake)
    poll = engine.settings.lease / 3
    queue = int((poll + engine.settings.lease / 3) * 1000) if turn._wait else 0
    copy: Copy | None = None
    asked, joins = False, 0  # asked: the lease may be ours without our knowing, or our place in line is still there
    try:
        while True:
            copy = engine.copies.pin(turn.session)
            sent, before, asked = now(), asked, True
            try:
                reply = await ops.begin(
                    io.link,
                    session=turn.session,
                    worker=engine.worker,
                    turn=turn.id,
                    signature=turn.signature,
                    generation=copy.generation if copy else 0,
                    lease=engine.lease_ms,
                    floor=max(engine.running.floor, turn._floor),
                    key=turn._key,
                    queue=queue,
                    most=turn._line,
                    affinity=turn._affinity,
                    place=turn._place,
                    avoid=turn._avoid,
                    remember=_remember(engine, turn),
                )
            except WorkerDraining:
                asked = before
                raise
            except UnknownWorker as error:
                joins = await _join(engine, io, joins, error)
                reply, asked = None, before
            if isinstance(reply, Granted):
                turn.fence, turn.fresh, turn._renewed, turn._owner = reply.fence, reply.fresh, sent, io.me()
                engine.running.add(turn)
                return reply, copy
            if copy:
                engine.departures.unpin(copy)
                copy = None
            if isinstance(reply, Elsewhere):
                asked = before
                raise SessionElsewhere(reply.worker, reply.address, new_delivery(reply.at), reply.instance)
            if isinstance(reply, (Answered, Died)):  # and our place in line is given up
                asked = False
                if isinstance(reply, Answered):
                    raise MessageAnswered(reply.answer)
                raise LeaseLost(f"the turn on {turn.session!r} that this message had is gone without an answer")
            if reply is None:
                continue
            if reply.why == "closing" and reply.worker == engine.worker:  # its message got lost, or there was none
                engine.departures.end_session(turn.session, reply.number)
            left, why = deadline - time.monotonic(), reply.why
            if turn._wait and any(turn._names & own._names for own in own_turns(engine, io)):
                left, why = 0.0, "itself"
            if left <= 0 or why == "full":
                asked = before if why == "full" else bool(queue)
                fence = reply.number if reply.why in ("turn", "repeat") else 0
                raise SessionBusy(turn.session, reply.worker, reply.left, reply.running, reply.ahead, why, fence)
            # No longer than the lease in the way: whoever holds it may be dead, and then nobody wakes us.
            await waiter.wait(min(left, poll, reply.left + 0.01 if reply.left else poll))
    except BaseException as error:
        stamped = copy is not None and engine.is_stamped(copy)
        if copy:
            engine.departures.unpin(copy)
        if asked and not engine.foreign:
            await _abandon(engine, io, turn, error, stamped)
        raise
    finally:
        engine.line.leave(turn.id)


async def _build(engine: Engine, io: IO, turn: TurnState, granted: Granted, old: Copy | None) -> Copy:
    """Build, and put the copy among ours."""
    if old:  # it is not the session's any more
        engine.departures.discard(old.session, old.generation, "soft", "moved")
        engine.departures.unpin(old)
    snapshot = snapshots.kept(engine, granted.snapshot)
    request = BuildRequest(turn.session, turn.config, turn.signature, snapshot, granted.fence)
    try:
        agent = await io.build(request)
    except (Exception, SystemExit) as error:
        raise BuildFailed(f"the builder raised {type(error).__name__}") from error
    if engine.foreign:
        engine.check_running()
    copy = Copy(turn.session, granted.generation, turn.signature, agent, saved=snapshots.digest(granted.snapshot))
    _use(turn, copy)
    engine.copies.add(copy)
    return copy


async def _give_up(engine: Engine, io: IO, turn: TurnState, copy: Copy | None, error: BaseException) -> None:
    """The turn has its lease and will not open: leaves no lease, and of what it built no record and no agent."""
    turn._in_use.copy = None
    engine.running.remove(turn)
    over = False
    try:
        over = await _abandon(engine, io, turn, error, copy is not None and engine.is_stamped(copy))
    finally:
        if copy:
            copy.turn = None
            if turn.fresh:
                engine.departures.discard(copy.session, copy.generation, "hard" if over else "soft", "lost")
            engine.departures.unpin(copy)
        elif over:
            engine.departures.end_session(turn.session, turn.fence)
        engine.running.finished(turn.id)


def _use(turn: TurnState, copy: Copy) -> None:
    """The turn has its agent. The copy remembers whose it is until the turn has ended, and is claimed with it."""
    copy.turn = (turn.id, turn.fence, turn._key)
    copy.used = turn.fence
    turn._in_use.copy = copy


async def leave_turn(engine: Engine, io: IO, turn: TurnState, error: BaseException | None) -> None:
    """End the turn; not to be cut off. Raises LeaseLost if its claim was lost, unless the body raised already."""
    if engine.foreign:  # a child that was forked in the turn's body: the turn is its parent's
        return
    copy = turn._copy
    assert copy is not None
    # Of a turn that failed the last good one stays. (An exception may well be falsy.)
    snapshot = b"" if error is not None else await snapshots.take(engine, io, copy)
    stamped, told = engine.is_stamped(copy), copy.told
    answer = turn.answer.encode(errors="replace")
    if len(answer) > engine.settings.answer_limit:
        logger.info("the answer of %r is too long to be kept", turn)
        answer = b""
    turn._in_use.copy = None
    engine.running.remove(turn)
    evict = turn._evict or ("soft fallback" if error is not None and turn._on_error == "evict" else "")
    evict = evict or ("soft drain" if engine.draining else "")
    if turn.lost:
        snapshot, evict = b"", "soft lost"

    def end() -> Coroutine[Any, Any, Ended]:
        ttl = int(engine.settings.snapshot_ttl * 1000)
        named: dict[str, Any] = {"stamped": stamped, "evict": evict, "snapshot": snapshot, "snapshot_ttl": ttl}
        if error is None and not turn.lost:
            named |= {"answer": answer, "remember": _remember(engine, turn)}
        return ops.end(io.link, turn.session, turn.id, engine.limits, **named)

    try:
        ended = await _known(engine, io, end)
    except (LeaseLost, WorkerDraining):
        turn.lost = True
        engine.departures.discard(copy.session, copy.generation, "soft", "lost")
    except CoordinatorUnavailable:
        copy.unsure = True
        if turn.lost:
            engine.departures.discard(copy.session, copy.generation, "soft", "lost")
        elif error is None:
            raise  # whether the end was accepted is open: the copy stays, and Redis's record decides at the next begin
        logger.warning("the end of a turn did not reach Redis: %r", turn)
    else:
        copy.unsure = False
        if ended.mode:
            engine.departures.discard(copy.session, copy.generation, ended.mode, ended.reason)
        else:
            snapshots.sent(engine, copy, snapshot)
            engine.copies.touch(copy, told)
        await _trim(engine, io, ended)
    finally:
        copy.turn = None
        engine.departures.unpin(copy)
        engine.running.finished(turn.id)
    if turn.lost and error is None:
        raise LeaseLost(f"the lease on {turn.session!r} was lost during the turn; its end was not accepted")


async def rebind(engine: Engine, io: IO, turn: TurnState, key: str) -> None:
    """Move a running turn's lease to another key. SessionBusy leaves it where it is."""
    engine.check_running()
    session_name(key, "lease key")
    if turn._copy is None:
        raise RuntimeError("the turn is over: there is no lease to move")
    if busy := await _known(engine, io, lambda: ops.rebind(io.link, turn.session, turn.id, key)):
        raise SessionBusy(key, busy.worker, busy.left, busy.running)
    turn._key = key
    _use(turn, turn._copy)


def _remember(engine: Engine, turn: TurnState) -> int:
    """For how many ms it is known what became of the turn's message, if that is more than a delivery needs."""
    return int(engine.settings.answer_ttl * 1000) if turn._named else 1


async def _known(engine: Engine, io: IO, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Redis lost its state, or took us for dead: join it, show what we hold, this turn too, and ask again."""
    joins = 0
    while True:
        try:
            return await ask()
        except UnknownWorker as error:
            joins = await _join(engine, io, joins, error)


async def _join(engine: Engine, io: IO, joins: int, error: UnknownWorker) -> int:
    """Join again, but not for ever. No caller ever sees UnknownWorker."""
    if joins >= JOINS:
        raise CoordinatorUnavailable("Redis forgets this worker again and again") from error
    await io.blocking(engine.rejoin)
    return joins + 1


async def _trim(engine: Engine, io: IO, ended: Ended) -> None:
    """What a commit or an end says of the caps. If there is more above one than a call looks at, it is seen to now."""
    over = ended.over
    if ended.more:
        try:
            flow = ops.maintain(io.link, "caps", engine.limits, worker=engine.worker, calls=TRIMS)
            over = max(over, (await flow).over)
        except CoordinatorUnavailable as error:
            logger.warning("could not look at the whole of a cap: %s", error)
    engine.warn_over(over)


async def _abandon(engine: Engine, io: IO, turn: TurnState, error: BaseException, stamped: bool = False) -> bool:
    """Leave nothing behind; True if the session was reset meanwhile. If Redis was just away, it is asked once only."""
    retry = not isinstance(error, CoordinatorUnavailable)
    flow = ops.abandon(io.link, turn.session, turn.id, engine.limits, turn._key, stamped=stamped, retry=retry)
    try:
        return await io.finish(flow)
    except CoordinatorUnavailable:
        if turn.fence:
            logger.warning("a turn could not be abandoned, its lease has to run out: %r", turn)
        else:
            logger.info("a turn could not be abandoned; if Redis granted it, its lease has to run out: %r", turn)
        return False
