"""The operations of a room, typed: each calls one script and reads its answer. `lua/` holds the rules."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from coordinator.codec import pairs, text
from coordinator.errors import WorkerExists
from coordinator.keys import SCHEMA
from coordinator.limits import Limits
from coordinator.link import Link

T = TypeVar("T")

#: Sessions in one call of a script (rule 13).
BATCH = 64
#: Batches of maintenance that somebody waits for: until it is done, but not for ever; new work may come as fast.
UNTIL_DONE = 100_000
#: Leases in one renewal.
RENEWALS = 256


@dataclass(frozen=True, slots=True)
class Granted:
    """The turn has its lease. `generation` is the copy to use; a new one has the turn's own fence."""

    fence: int
    generation: int
    fresh: bool
    snapshot: bytes = b""


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody is in the way. `why`: a 'turn', the 'queue' or the 'grace' after a loss of state (no worker), or
    'closing': that worker has to end the session's last life first, which is known by its generation."""

    why: str
    worker: str
    left: float
    running: float
    ahead: int = 0  #: how many wait before
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another worker holds or builds the agent."""

    worker: str
    address: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The turn's end was accepted. `mode` says how to release the copy, '' to keep it."""

    mode: str = ""
    reason: str = ""
    over: int = 0  #: how far over a cap the room stays because of turns, if that is news
    more: bool = False  #: more is above a cap than one call looks at: go on with `maintain`


@dataclass(frozen=True, slots=True)
class Evicted:
    """What an eviction met: 'evicted' or 'marked' with the copy, 'absent', or 'ending'; see evict.lua."""

    kind: str
    worker: str = ""
    generation: int = 0

    @property
    def found(self) -> bool:
        return self.kind in ("evicted", "marked")


@dataclass(frozen=True, slots=True)
class Claim:
    """A copy, or a turn that builds one, as its worker knows it."""

    session: str
    generation: int
    signature: str
    state: str
    turn: str
    fence: int
    key: str
    counts: bool  #: idle time counts: the agent keeps an activity timestamp


@dataclass(slots=True)
class Maintenance:
    """What a round of maintenance did."""

    lost: int = 0
    gone: int = 0
    idle: int = 0
    capped: int = 0
    over: int = 0
    endings: list[tuple[str, int]] = field(default_factory=list)


def caps(limits: Limits) -> tuple[str, str]:
    """The caller's caps as scripts take them: for the worker, for the room; '' for none."""
    return str(limits.worker or ""), str(limits.room or "")


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
    affinity: bool = False,
) -> Granted | Busy | Elsewhere:
    reply = await link.call(
        "begin", session, worker, turn, signature, generation, lease, floor, key, queue, int(affinity)
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
    return Elsewhere(text(reply[1]), text(reply[2]))


async def commit(link: Link, session: str, turn: str, limits: Limits) -> Ended:
    over, more = await link.call("commit", session, turn, *caps(limits))
    return Ended(over=int(over), more=bool(more))


async def end(
    link: Link,
    session: str,
    turn: str,
    limits: Limits,
    *,
    counts: bool,
    evict: str = "",
    snapshot: bytes = b"",
    snapshot_ttl: int = 1,
) -> Ended:
    """`evict` is '<mode> <reason>' of an eviction that the turn itself wants; `snapshot` b'' leaves Redis's alone."""
    mode, reason, over, more = await link.call(
        "end", session, turn, int(counts), evict, *caps(limits), snapshot, snapshot_ttl, link.ended_ms
    )
    return Ended(text(mode), text(reason), int(over), bool(more))


async def abandon(
    link: Link, session: str, turn: str, limits: Limits, key: str = "", *, counts: bool = False, retry: bool = True
) -> bool:
    """Returns whether a hard eviction was waiting for this build, so that the caller ends the session."""
    argv = (session, turn, key, int(counts), *caps(limits), link.ended_ms)
    return bool(await link.call("abandon", *argv, retry=retry) == b"over")


async def rebind(link: Link, session: str, turn: str, key: str) -> Busy | None:
    """None when the lease stands under the new key now."""
    reply = await link.call("rebind", session, turn, key)
    if reply[0] == b"bound":
        return None
    return Busy("turn", text(reply[1]), int(reply[2]) / 1000, int(reply[3]) / 1000)


async def evict(link: Link, session: str, mode: str, reason: str, worker: str = "") -> Evicted:
    """`worker` is a caller that can end the session itself."""
    kind, *copy = await link.call("evict", session, mode, reason, worker)
    return Evicted(text(kind), text(copy[0]), int(copy[1])) if copy else Evicted(text(kind))


async def evict_many(
    link: Link, sessions: Sequence[str], mode: str, reason: str, *, signature: str = "", worker: str = "",
    skip_busy: bool = False,
) -> tuple[int, int]:  # fmt: skip
    """How many were evicted, and how many marked because they are mid-turn."""
    evicted = marked = 0
    for batch in batches(sessions, BATCH):
        busy = "skip" if skip_busy else "mark"
        reply = await link.call("evict_many", mode, reason, signature, worker, busy, *batch)
        evicted, marked = evicted + int(reply[0]), marked + int(reply[1])
    return evicted, marked


async def interrupt(link: Link, session: str) -> bool:
    return bool(await link.call("interrupt", session))


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
) -> tuple[str, float]:
    """The room's epoch, and the seconds of grace left. WorkerExists: another worker with this id is alive."""
    reply = await link.call("register", worker, lease, SCHEMA, epoch, floor, address, host, pid, state, instance)
    if reply[0] == b"taken":
        expiry, left, there, number = (text(word) for word in reply[1:])
        raise WorkerExists(worker, host=there, pid=number, expiry=expiry, left=int(left) / 1000)
    return text(reply[1]), int(reply[2]) / 1000


async def beat(
    link: Link, worker: str, lease: int, instance: str, turns: Sequence[tuple[str, str]], retry: bool = True
) -> tuple[str, str, set[str]]:
    """One renewal of at most RENEWALS turns: the room's epoch, the worker's state, ids of the turns that were lost."""
    flat = [word for pair in turns for word in pair]
    reply = await link.call("beat", worker, lease, SCHEMA, instance, *flat, retry=retry)
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
    at = {"held_from": 0, "lru_from": 0, "cursor": 0}
    for _ in range(calls):
        named, endings = await link.call("maintain", steps, worker, int(paced), idle, *caps(limits), *at.values())
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


async def closed(link: Link, worker: str, endings: Sequence[tuple[str, int]]) -> None:
    """Ends of sessions that were carried out."""
    for batch in batches(endings, BATCH):
        await link.call("closed", worker, *(word for ending in batch for word in ending))


async def fate(link: Link, session: str, worker: str, generation: int) -> str:
    """What is to become of a copy, or of what is left of its session: 'keep', 'hard' (its end is this worker's to carry
    out), or 'soft'."""
    reads = [("HGET", link.keys.closing, session), ("HMGET", link.keys.session(session), "worker", "generation")]
    closing, record = await link.read_many(reads)
    mine = [worker, str(generation)]
    return "hard" if text(closing).split(" ") == mine else "keep" if [text(word) for word in record] == mine else "soft"


async def claim(link: Link, worker: str, lease: int, floor: int, copies: Sequence[Claim]) -> list[str]:
    """For each copy 'keep', 'soft' or 'hard'; at most BATCH of them."""
    flat: list[str | int] = []
    for copy in copies:
        flat += (copy.session, copy.generation, copy.signature, copy.state, copy.turn, copy.fence, copy.key)
        flat.append(int(copy.counts))
    return [text(word) for word in await link.call("claim", worker, lease, floor, *flat)]


async def disown(link: Link, worker: str, copies: Sequence[tuple[str, int]]) -> int:
    dropped = 0
    for batch in batches(copies, BATCH):
        dropped += int(await link.call("disown", worker, *(word for copy in batch for word in copy)))
    return dropped


async def drain(link: Link, worker: str, instance: str = "") -> bool:
    return bool(await link.call("drain", worker, instance))


async def deregister(link: Link, worker: str, instance: str) -> bool:
    return bool(await link.call("deregister", worker, instance))


async def set_limits(link: Link, limits: Limits | None, only: Iterable[str] | None = None) -> None:
    """None gives every worker its own limits back. `only`: leave the others as they are."""
    named: dict[str, str] = dict.fromkeys(("room", "worker", "idle_ttl", "memory"), "")
    if limits is not None:
        ttl = None if limits.idle_ttl is None else _ms(limits.idle_ttl)
        values = {"room": limits.room, "worker": limits.worker, "idle_ttl": ttl, "memory": limits.memory}
        named = {name: "none" if value is None else str(value) for name, value in values.items()}
    chosen = [(name, value) for name, value in named.items() if only is None or name in set(only)]
    await link.call("set_limits", *(word for pair in chosen for word in pair))


def _ms(seconds: float) -> int:
    """Milliseconds for a script; never zero, which would mean something else."""
    return max(1, round(seconds * 1000))


def batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
