"""The operations of a room, typed: each calls one script and reads its answer. `lua/` says what the rules are."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from coordinator.answers import Answered, Busy, Claim, Died, Elsewhere, Ended, Evicted, Granted, Maintenance
from coordinator.codec import pairs, text
from coordinator.errors import WorkerExists
from coordinator.keys import SCHEMA
from coordinator.limits import Limits
from coordinator.link import Link
from coordinator.scripts import batch_size
from coordinator.stubs import Stub

T = TypeVar("T")

#: Sessions in one call of a script (rule 13).
BATCH = batch_size()
#: Batches of maintenance that somebody waits for: until it is done, but not for ever; new work may come as fast.
UNTIL_DONE = 100_000
#: Names that are read at once.
PAGE = 256

_ABANDON = Stub("abandon", "session turn key stamped worker_cap room_cap spent")
_BEAT = Stub("beat", "worker lease schema instance", repeated="session turn")
_BEGIN = Stub("begin", "session worker turn signature generation lease floor key queue most affinity place remember")
_CLAIM = Stub("claim", "worker lease floor", repeated="session generation signature state turn fence key stamped")
_CLOSED = Stub("closed", "worker instance", repeated="session generation")
_COMMIT = Stub("commit", "session turn worker_cap room_cap")
_DEREGISTER = Stub("deregister", "worker instance")
_DISOWN = Stub("disown", "worker", repeated="session generation")
_DRAIN = Stub("drain", "worker instance")
_END = Stub("end", "session turn stamped evict worker_cap room_cap snapshot ttl spent answer remember")
_EVICT = Stub("evict", "session mode reason caller")
_EVICT_MANY = Stub("evict_many", "mode reason signature worker mid_turn", repeated="session")
_INTERRUPT = Stub("interrupt", "session fence")
_MAINTAIN = Stub("maintain", "steps worker paced idle_ttl worker_cap room_cap held_from lru_from cursor")
_REBIND = Stub("rebind", "session turn key")
_REGISTER = Stub("register", "worker lease schema known floor address host pid state instance cap")
_SET_LIMITS = Stub("set_limits", repeated="name value")

#: Leases in one renewal.
RENEWALS = _BEAT.most


def caps(limits: Limits) -> dict[str, Any]:
    """The caller's caps as scripts take them; '' for none."""
    return {"worker_cap": limits.worker or "", "room_cap": limits.room or ""}


async def begin(
    link: Link,
    *,
    session: str,
    worker: str,
    turn: str,
    signature: str,
    generation: int,
    lease: int,
    floor: int = 0,
    key: str = "",
    queue: int = 0,
    most: int = 0,
    affinity: bool = False,
    place: bool = False,
    avoid: Collection[str] = (),
    remember: int = 1,
) -> Granted | Busy | Elsewhere | Answered | Died:
    reply = await _BEGIN(
        link,
        session=session,
        worker=worker,
        turn=turn,
        signature=signature,
        generation=generation,
        lease=lease,
        floor=floor,
        key=key,
        queue=queue,
        most=most,
        affinity=int(affinity),
        place=" ".join(["", *avoid, ""]) if place else "",
        remember=remember,
    )
    kind = reply[0]
    if kind == b"hit":
        return Granted(int(reply[1]), int(reply[2]), fresh=False)
    if kind == b"build":
        fence = int(reply[1])
        return Granted(fence, fence, fresh=True, snapshot=reply[2])
    if kind == b"busy":
        why, who = text(reply[1]), text(reply[2])
        return Busy(why, who, int(reply[3]) / 1000, int(reply[4]) / 1000, int(reply[5]), int(reply[6]))
    if kind == b"answered":
        return Answered(text(reply[1]))
    if kind == b"died":
        return Died()
    return Elsewhere(text(reply[1]), text(reply[2]), text(reply[3]), int(reply[4]))


async def commit(link: Link, session: str, turn: str, limits: Limits) -> Ended:
    over, more = await _COMMIT(link, session=session, turn=turn, **caps(limits))
    return Ended(over=int(over), more=bool(more))


async def end(
    link: Link,
    session: str,
    turn: str,
    limits: Limits,
    *,
    stamped: bool,
    evict: str = "",
    snapshot: bytes = b"",
    snapshot_ttl: int = 1,
    answer: bytes = b"",
    remember: int = 0,
) -> Ended:
    """`evict` is '<mode> <reason>' of an eviction that the turn itself wants; `snapshot` b'' leaves Redis's alone.
    `answer` is kept for `remember` ms, if the turn has a message; 0: there is none."""
    mode, reason, over, more = await _END(
        link,
        session=session,
        turn=turn,
        stamped=int(stamped),
        evict=evict,
        **caps(limits),
        snapshot=snapshot,
        ttl=snapshot_ttl,
        spent=link.spent_ms,
        answer=answer,
        remember=remember,
    )
    return Ended(text(mode), text(reason), int(over), bool(more))


async def abandon(
    link: Link, session: str, turn: str, limits: Limits, key: str = "", *, stamped: bool = False, retry: bool = True
) -> bool:
    """Returns whether a hard eviction was waiting for this build, so that the caller ends the session."""
    reply = await _ABANDON(
        link,
        session=session,
        turn=turn,
        key=key,
        stamped=int(stamped),
        **caps(limits),
        spent=link.spent_ms,
        retry=retry,
    )
    return bool(reply == b"over")


async def rebind(link: Link, session: str, turn: str, key: str) -> Busy | None:
    """None when the lease stands under the new key now."""
    reply = await _REBIND(link, session=session, turn=turn, key=key)
    if reply[0] == b"bound":
        return None
    return Busy("turn", text(reply[1]), int(reply[2]) / 1000, int(reply[3]) / 1000)


async def evict(link: Link, session: str, mode: str, reason: str, worker: str = "") -> Evicted:
    """`worker` is a caller that can end the session itself."""
    kind, *copy = await _EVICT(link, session=session, mode=mode, reason=reason, caller=worker)
    return Evicted(text(kind), text(copy[0]), int(copy[1])) if copy else Evicted(text(kind))


async def evict_many(
    link: Link, sessions: Sequence[str], mode: str, reason: str, *, signature: str = "", worker: str = "",
    skip_busy: bool = False,
) -> tuple[int, int]:  # fmt: skip
    """How many were evicted, and how many marked because they are mid-turn."""
    evicted = marked = 0
    for batch in batches(sessions, BATCH):
        mid_turn = "skip" if skip_busy else "mark"
        reply = await _EVICT_MANY(
            link, batch, mode=mode, reason=reason, signature=signature, worker=worker, mid_turn=mid_turn
        )
        evicted, marked = evicted + int(reply[0]), marked + int(reply[1])
    return evicted, marked


async def interrupt(link: Link, session: str, fence: int = 0) -> bool:
    """`fence`: only if it is that turn which runs."""
    return bool(await _INTERRUPT(link, session=session, fence=fence or ""))


async def register(
    link: Link,
    worker: str,
    lease: int,
    *,
    epoch: str,
    floor: int,
    address: str,
    host: str,
    pid: int,
    state: str,
    instance: str,
    cap: int | None = None,
) -> tuple[str, float]:
    """The room's epoch, and the seconds of grace left. WorkerExists: another worker with this id is alive."""
    reply = await _REGISTER(
        link,
        worker=worker,
        lease=lease,
        schema=SCHEMA,
        known=epoch,
        floor=floor,
        address=address,
        host=host,
        pid=pid,
        state=state,
        instance=instance,
        cap=cap or "",
    )
    if reply[0] == b"taken":
        expiry, left, there, number = (text(word) for word in reply[1:])
        raise WorkerExists(worker, host=there, pid=number, expiry=expiry, left=int(left) / 1000)
    return text(reply[1]), int(reply[2]) / 1000


async def beat(
    link: Link, worker: str, lease: int, instance: str, turns: Sequence[tuple[str, str]], retry: bool = True
) -> tuple[str, str, set[str]]:
    """One renewal of at most RENEWALS turns: the room's epoch, the worker's state, ids of the turns that were lost."""
    flat = [word for pair in turns for word in pair]
    reply = await _BEAT(link, flat, worker=worker, lease=lease, schema=SCHEMA, instance=instance, retry=retry)
    return text(reply[0]), text(reply[1]), {text(turn) for turn in reply[3::2]}


async def maintain(
    link: Link,
    steps: str,
    limits: Limits,
    *,
    worker: str = "",
    paced: bool = False,
    calls: int = UNTIL_DONE,
    seconds: float = float("inf"),
) -> Maintenance:
    """Up to `calls` bounded batches of 'all', 'reap', 'sweep' or 'caps', for about so many seconds at most."""
    until = time.monotonic() + seconds
    done, idle = Maintenance(), "" if limits.idle_ttl is None else str(_ms(limits.idle_ttl))
    at: dict[str, Any] = {"held_from": 0, "lru_from": 0, "cursor": 0}
    for _ in range(calls):
        named, endings = await _MAINTAIN(
            link, steps=steps, worker=worker, paced=int(paced), idle_ttl=idle, **caps(limits), **at
        )
        said = {name: int(number) for name, number in pairs(named).items()}
        at = {name: said[name] for name in at}
        done.lost += said["lost"]
        done.gone += said["gone"]
        done.idle += said["idle"]
        done.capped += said["capped"]
        done.over = max(done.over, said["over"])
        done.endings += [(text(endings[i]), int(endings[i + 1])) for i in range(0, len(endings), 2)]
        if not said["more"] or time.monotonic() > until:
            break
        paced = bool(said["paced"])  # once this second is ours, we go on
    return done


async def closed(link: Link, worker: str, instance: str, endings: Sequence[tuple[str, int]]) -> None:
    """Ends of sessions that were carried out."""
    for batch in batches(endings, BATCH):
        await _CLOSED(link, (word for ending in batch for word in ending), worker=worker, instance=instance)


async def fate(link: Link, session: str, worker: str, instance: str, generation: int) -> str:
    """What is to become of a copy, or of what is left of its session: 'keep', 'hard' (its end is this worker's to carry
    out), or 'soft', also where another instance has taken the worker's place."""
    keys = link.keys
    reads = [("HGET", keys.closing, session), ("HMGET", keys.session(session), "worker", "generation")]
    closing, record, there = await link.read_many([*reads, ("HGET", keys.worker(worker), "instance")])
    mine = [worker, str(generation)]
    if there and text(there) != instance:
        return "soft"
    return "hard" if text(closing).split(" ") == mine else "keep" if [text(word) for word in record] == mine else "soft"


async def claim(link: Link, worker: str, lease: int, floor: int, copies: Sequence[Claim]) -> list[str]:
    """For each copy 'keep', 'soft' or 'hard'; at most BATCH of them."""
    flat: list[str | int] = []
    for copy in copies:
        flat += (copy.session, copy.generation, copy.signature, copy.state, copy.turn, copy.fence, copy.key)
        flat.append(int(copy.stamped))
    return [text(word) for word in await _CLAIM(link, flat, worker=worker, lease=lease, floor=floor)]


async def disown(link: Link, worker: str, copies: Sequence[tuple[str, int]]) -> int:
    dropped = 0
    for batch in batches(copies, BATCH):
        dropped += int(await _DISOWN(link, (word for copy in batch for word in copy), worker=worker))
    return dropped


async def drain(link: Link, worker: str, instance: str = "") -> bool:
    return bool(await _DRAIN(link, worker=worker, instance=instance))


async def deregister(link: Link, worker: str, instance: str) -> bool:
    return bool(await _DEREGISTER(link, worker=worker, instance=instance))


async def set_limits(link: Link, limits: Limits | None, only: Iterable[str] | None = None) -> None:
    """None gives every worker its own limits back. `only`: leave the others as they are."""
    named: dict[str, str] = dict.fromkeys(("room", "worker", "idle_ttl", "memory"), "")
    if limits is not None:
        ttl = None if limits.idle_ttl is None else _ms(limits.idle_ttl)
        values = {"room": limits.room, "worker": limits.worker, "idle_ttl": ttl, "memory": limits.memory}
        named = {name: "none" if value is None else str(value) for name, value in values.items()}
    chosen = [(name, value) for name, value in named.items() if only is None or name in set(only)]
    await _SET_LIMITS(link, (word for pair in chosen for word in pair))


def _ms(seconds: float) -> int:
    """Milliseconds for a script; never zero, which would mean something else."""
    return max(1, round(seconds * 1000))


async def pages(link: Link, index: str, limit: int | None = None) -> AsyncIterator[list[str]]:
    """The names in a sorted set of ticks, lowest first, a page at a time and none twice; at most `limit`."""
    after, left = "-inf", limit
    while left is None or left > 0:
        count = PAGE if left is None else min(PAGE, left)
        flat = await link.read("ZRANGEBYSCORE", index, f"({after}", "+inf", "WITHSCORES", "LIMIT", 0, count)
        if not flat:
            return
        yield [text(name) for name in flat[::2]]
        after = text(flat[-1])
        left = None if left is None else left - len(flat) // 2


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
