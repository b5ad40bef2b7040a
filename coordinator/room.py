"""The coordinator: a room's state without any agents. What the command line, the service and operators use.

`AsyncCoordinator` holds the flows; `Coordinator` is the same, driven without an event loop.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from coordinator import operations as ops
from coordinator.codec import pairs, text
from coordinator.limits import Limits
from coordinator.link import AsyncLink, Link, SyncLink, run
from coordinator.names import mode_name, reason_name, session_name, signature_name, worker_name
from coordinator.scripts import Script
from coordinator.settings import Settings


@dataclass(frozen=True, slots=True)
class Session:
    """One session as Redis knows it; times in seconds."""

    session: str
    worker: str
    signature: str
    generation: int
    state: str  #: building, live
    fence: int
    turn: str  #: '' when idle
    lease_left: float | None  #: None when idle; 0 when it ran out
    running: float | None
    idle: float | None  #: None mid-turn, or when idle time does not count for it
    last_use: int  #: tick; 0 while it is being built
    lease_key: str
    evict: str  #: '<mode> <reason>' of an eviction that waits for the turn's end
    waiting: int  #: how many turns are in line


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """One worker as Redis knows it; times in seconds."""

    worker: str
    address: str
    host: str
    pid: int
    started: float  #: Unix time by Redis's clock
    state: str  #: up, draining
    heartbeat_left: float  #: below zero: it is dead and will be reaped
    held: int
    turns: int  #: how many run on it
    cap: int | None  #: how many copies it may hold by its own limits; None: any number


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the journal."""

    id: str
    at: float  #: Unix time by Redis's clock
    event: str
    fields: Mapping[str, str]


class AsyncCoordinator:
    """A room's state, for asyncio. Settings as in `Settings`: arguments, else GREENROOM_*."""

    _link: Link

    def __init__(
        self,
        redis: Any = None,
        room: str | None = None,
        *,
        scripts: Mapping[str, Script] | None = None,
        **settings: Any,
    ) -> None:
        self.settings = Settings.load(redis=redis, room=room, **settings)
        self._link = self._make_link(scripts)

    def _make_link(self, scripts: Mapping[str, Script] | None) -> Link:
        return AsyncLink(self.settings, scripts)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._link.disconnect()

    async def sessions(self, limit: int | None = None) -> list[Session]:
        """Sessions with a copy, oldest first, then those being built; at most `limit`."""
        keys, found = self._link.keys, list[Session]()
        async for names in ops.pages(self._link, keys.lru, limit):
            found += await self._describe(names)
        if limit is None or len(found) < limit:
            busy = [text(name) for name in await self._link.read("ZRANGE", keys.leases, 0, (limit or 0) - 1)]
            found += [one for one in await self._describe(busy) if one.state == "building"]
        return found if limit is None else found[:limit]

    async def session(self, session: str) -> Session | None:
        found = await self._describe([session_name(session)])
        return found[0] if found else None

    async def workers(self) -> list[WorkerInfo]:
        keys = self._link.keys
        now, flat = await self._link.read_many([("TIME",), ("ZRANGE", keys.workers, 0, -1, "WITHSCORES")])
        beats = pairs(flat)
        reads: list[tuple[Any, ...]] = []
        for name in beats:
            reads += [("HGETALL", keys.worker(name)), ("ZCARD", keys.held(name)), ("ZSCORE", keys.turns, name)]
        answers = await self._link.read_many(reads)
        found = []
        for i, (name, expiry) in enumerate(beats.items()):
            raw, held, turns = answers[3 * i : 3 * i + 3]
            about = pairs(raw)
            found.append(
                WorkerInfo(
                    worker=name,
                    address=about.get("address", ""),
                    host=about.get("host", ""),
                    pid=int(about.get("pid") or 0),
                    started=int(about.get("started") or 0) / 1000,
                    state=about.get("state", "up"),
                    heartbeat_left=(float(expiry) - _ms(now)) / 1000,
                    held=int(held),
                    turns=int(turns or 0),
                    cap=int(about["cap"]) if about.get("cap") else None,
                )
            )
        return found

    async def counters(self) -> dict[str, int]:
        raw = pairs(await self._link.read("HGETALL", self._link.keys.counters))
        return {name: int(value) for name, value in sorted(raw.items())}

    async def limits(self) -> Limits | None:
        """What an operator set for the room; None when each worker's own limits apply."""
        raw = pairs(await self._link.read("HGETALL", self._link.keys.settings))
        if not raw.keys() & {"room", "worker", "idle_ttl", "memory"}:
            return None
        number = {name: None if raw.get(name, "none") == "none" else int(raw[name]) for name in raw | {"room": ""}}
        ttl = number.get("idle_ttl")
        return Limits(
            room=number.get("room"),
            worker=number.get("worker"),
            idle_ttl=None if ttl is None else ttl / 1000,
            memory=number.get("memory"),
        )

    async def set_limits(self, limits: Limits | None, only: Collection[str] | None = None) -> None:
        """For the whole room and at once; None gives every worker its own limits back. `only` these are touched."""
        await ops.set_limits(self._link, limits, only)

    async def evict(self, session: str, mode: str = "soft", reason: str = "operator") -> bool:
        """Evict a session's agent wherever it is; mid-turn, at the turn's end. False when nobody holds one."""
        session_name(session), mode_name(mode), reason_name(reason)
        return (await ops.evict(self._link, session, mode, reason)).found

    async def evict_signature(self, signature: str, mode: str = "soft", reason: str = "operator") -> int:
        """Evict every agent that was built with this signature; how many."""
        signature_name(signature)
        return await self._evict_all(self._link.keys.lru, mode, reason, signature=signature)

    async def evict_worker(self, worker: str, mode: str = "soft", reason: str = "operator") -> int:
        """Evict every agent that a worker holds; how many."""
        return await self._evict_all(self._link.keys.held(worker_name(worker)), mode, reason, worker=worker)

    async def drain(self, worker: str) -> bool:
        """Tell a worker to take no new sessions and to let its agents go. False: no such worker."""
        return await ops.drain(self._link, worker_name(worker))

    async def sweep(self) -> int:
        """Evict what has been idle for longer than the room's idle_ttl; how many. Does nothing if none is set."""
        return (await ops.maintain(self._link, "sweep", Limits())).idle

    async def reap(self) -> int:
        """Settle expired leases and dead workers; how many of both."""
        done = await ops.maintain(self._link, "reap", Limits())
        return done.lost + done.gone

    async def events(self, since: str = "-", limit: int = 1000) -> list[Event]:
        """The journal, oldest first, after the entry `since` ('-': from the start)."""
        start = since if since == "-" else f"({since}"
        raw = await self._link.read("XRANGE", self._link.keys.journal, start, "+", "COUNT", limit)
        found = []
        for name, fields in raw:
            entry = pairs(fields)
            found.append(Event(text(name), int(text(name).split("-")[0]) / 1000, entry.pop("event", ""), entry))
        return found

    async def _evict_all(self, index: str, mode: str, reason: str, *, signature: str = "", worker: str = "") -> int:
        """Everything in an index, then what is being built and is in none."""
        mode_name(mode), reason_name(reason)
        count = 0
        names = [name async for page in ops.pages(self._link, index) for name in page]
        names += [text(name) for name in await self._link.read("ZRANGE", self._link.keys.leases, 0, -1)]
        for batch in ops.batches(list(dict.fromkeys(names)), ops.BATCH):
            evicted, marked = await ops.evict_many(self._link, batch, mode, reason, signature=signature, worker=worker)
            count += evicted + marked
        return count

    async def _describe(self, names: Sequence[str]) -> list[Session]:
        keys = self._link.keys
        reads: list[tuple[Any, ...]] = [("TIME",)]
        for name in names:
            reads += [("HGETALL", keys.session(name)), ("ZSCORE", keys.leases, name)]
            reads += [("ZSCORE", keys.activity, name), ("ZSCORE", keys.lru, name), ("ZCARD", keys.waiting(name))]
        now, *answers = await self._link.read_many(reads)
        found = []
        for i, name in enumerate(names):
            raw, expiry, activity, tick, waiting = answers[5 * i : 5 * i + 5]
            record = pairs(raw)
            if not record.get("worker"):  # as for the scripts: without one there is no copy
                continue
            turn, since = record.get("turn", ""), record.get("since")
            left = (float(expiry or 0) - _ms(now)) / 1000
            in_force = 0 < left <= int(record.get("lease") or 0) / 1000
            found.append(
                Session(
                    session=name,
                    worker=record["worker"],
                    signature=record["signature"],
                    generation=int(record["generation"]),
                    state=record["state"],
                    fence=int(record["fence"]),
                    turn=turn,
                    lease_left=None if not turn else left if in_force else 0.0,
                    running=None if since is None else (_ms(now) - int(since)) / 1000,
                    idle=None if activity is None else (_ms(now) - float(activity)) / 1000,
                    last_use=int(tick or 0),
                    lease_key=record.get("key", ""),
                    evict=record.get("evict", ""),
                    waiting=int(waiting),
                )
            )
        return found


class Coordinator:
    """A room's state. Settings as in `Settings`: arguments, else GREENROOM_*."""

    def __init__(
        self,
        redis: Any = None,
        room: str | None = None,
        *,
        scripts: Mapping[str, Script] | None = None,
        **settings: Any,
    ) -> None:
        self._flows = _Flows(redis, room, scripts=scripts, **settings)
        self.settings = self._flows.settings

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        run(self._flows.close())

    def sessions(self, limit: int | None = None) -> list[Session]:
        return run(self._flows.sessions(limit))

    def session(self, session: str) -> Session | None:
        return run(self._flows.session(session))

    def workers(self) -> list[WorkerInfo]:
        return run(self._flows.workers())

    def counters(self) -> dict[str, int]:
        return run(self._flows.counters())

    def limits(self) -> Limits | None:
        return run(self._flows.limits())

    def set_limits(self, limits: Limits | None, only: Collection[str] | None = None) -> None:
        return run(self._flows.set_limits(limits, only))

    def evict(self, session: str, mode: str = "soft", reason: str = "operator") -> bool:
        return run(self._flows.evict(session, mode, reason))

    def evict_signature(self, signature: str, mode: str = "soft", reason: str = "operator") -> int:
        return run(self._flows.evict_signature(signature, mode, reason))

    def evict_worker(self, worker: str, mode: str = "soft", reason: str = "operator") -> int:
        return run(self._flows.evict_worker(worker, mode, reason))

    def drain(self, worker: str) -> bool:
        return run(self._flows.drain(worker))

    def sweep(self) -> int:
        return run(self._flows.sweep())

    def reap(self) -> int:
        return run(self._flows.reap())

    def events(self, since: str = "-", limit: int = 1000) -> list[Event]:
        return run(self._flows.events(since, limit))


class _Flows(AsyncCoordinator):
    """The flows over a link that never suspends."""

    def _make_link(self, scripts: Mapping[str, Script] | None) -> Link:
        return SyncLink(self.settings, scripts)


def _ms(time: tuple[int, int]) -> float:
    """Redis's TIME in milliseconds."""
    return time[0] * 1000 + time[1] / 1000
