"""A fleet of workers with one awaitable face: sync or async workers, in this process or each in a process of its own.

The bodies of the behaviours' tests are written once, against `Fleet`, `Seat` and `Play`.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import logging
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import redis

from coordinator import Coordinator, Limits
from coordinator.keys import Keys
from coordinator.room import Session
from support import Clock
from support.agents import Agent, Backstage, Cast, CastLifecycle, Record
from support.broken import scripts
from workers import AsyncWorker, Lifecycle, Worker

T = TypeVar("T")

#: What a message asks for unless its test says otherwise.
CONFIG: dict[str, Any] = {
    "model": "sonnet",
    "runtime": {"provider": "anthropic", "base_url": "https://api.example", "api_key": "sk-not-a-real-key"},
    "toolsets": ["web", "terminal"],
}
#: A lease that no test lives to see the end of, unless it moves the clock by more.
LONG = 36_000.0


#: How long to wait for what must come; the negative controls, where it does not come, wait for less.
patience = 15.0


async def until(condition: Callable[[], Any], seconds: float | None = None, what: str = "condition") -> Any:
    """The async twin of `wait_until`; the condition may be a coroutine function."""
    loop = asyncio.get_running_loop()
    seconds = patience if seconds is None else seconds
    deadline = loop.time() + seconds
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if loop.time() > deadline:
            raise AssertionError(f"{what} did not come true within {seconds} s")
        await asyncio.sleep(0.005)


@dataclass(frozen=True, slots=True)
class Said:
    """A whole turn, looked at from outside."""

    fresh: bool
    fence: int
    serial: int
    history: list[str]


class Play(Protocol):
    """A turn that is open."""

    session: str
    fence: int
    fresh: bool
    serial: int

    async def say(self, message: str = "hello") -> list[str]:
        """Let the agent answer; gives back all the messages it knows of."""

    async def end(self, error: BaseException | None = None) -> None:
        """Leave the turn, as if its body had raised `error`."""

    async def forget(self) -> None:
        """Drop every reference to the turn without ending it."""


class Seat(Protocol):
    """A worker of the fleet. `LocalSeat` says what each of these does."""

    id: str

    async def open(self, session: str, config: Any = CONFIG, **options: Any) -> Play: ...
    async def insert(self, sessions: Sequence[str]) -> None: ...
    async def evict(self, session: str, mode: str = "soft", reason: str = "reset") -> bool: ...
    async def interrupt(self, session: str) -> bool: ...
    async def sweep(self) -> int: ...
    async def resident(self) -> list[str]: ...
    async def records(self) -> list[Record]: ...
    async def ended(self) -> list[str]: ...
    async def shut(self, gate: str) -> None: ...
    async def unlock(self, gate: str = "") -> None: ...
    async def deafen(self) -> None: ...
    async def hear(self) -> None: ...
    async def settle(self) -> None: ...
    async def close(self) -> None: ...


class LogTap(logging.Handler):
    """The warnings of the product, of all threads."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def attach(self) -> None:
        logging.getLogger("greenroom").addHandler(self)

    def detach(self) -> None:
        logging.getLogger("greenroom").removeHandler(self)


class LocalSeat:
    """A worker in this process."""

    def __init__(
        self,
        kind: str,
        source: Any,
        room: str,
        *,
        broken: str = "",
        backstage: Backstage | None = None,
        lifecycle: Callable[[Cast], Lifecycle] = CastLifecycle,
        plain: bool = False,
        **settings: Any,
    ) -> None:
        """`plain`: an async worker, too, gets a builder that is no coroutine function."""
        self.kind, self.room = kind, room
        self.missed: list[Any] = []  #: messages that came while it was deaf
        self.cast = Cast(backstage)
        common: dict[str, Any] = {"redis": source, "room": room, "scripts": scripts(broken)} | settings
        common["lifecycle"] = lifecycle(self.cast)
        self.worker: Any
        if kind == "async":
            self.worker = AsyncWorker(self.cast.build if plain else self._build, **common)
        else:
            self.worker = Worker(self.cast.build, **common)
        self.id: str = self.worker.id

    async def _build(self, request: Any) -> Agent:
        await asyncio.to_thread(self.cast.pass_gate, f"build:{request.session}")
        return self.cast.make(request)

    async def _do(self, method: Callable[..., Any], *arguments: Any) -> Any:
        if self.kind == "async":
            return await method(*arguments)
        return await asyncio.to_thread(method, *arguments)

    async def start(self) -> None:
        await self._do(self.worker.start)

    async def close(self) -> None:
        await self._do(self.worker.close)

    async def open(self, session: str, config: Any = CONFIG, **options: Any) -> LocalPlay:
        """Begin a turn; its agent is in use until the play ends."""
        turn = self.worker.turn(session, config, **options)
        await self._do(turn.__aenter__ if self.kind == "async" else turn.__enter__)
        return LocalPlay(self, turn)

    async def insert(self, sessions: Sequence[str]) -> None:
        """One turn after the other; with a sync worker all of them on one thread of their own."""
        if self.kind == "async":
            for session in sessions:
                async with self.worker.turn(session, CONFIG) as turn:
                    with turn.agent.use():
                        turn.agent.run("hello")
            return

        def insert() -> None:
            for session in sessions:
                with self.worker.turn(session, CONFIG) as turn, turn.agent.use():
                    turn.agent.run("hello")

        await asyncio.to_thread(insert)

    async def evict(self, session: str, mode: str = "soft", reason: str = "reset") -> bool:
        return bool(await self._do(self.worker.evict, session, mode, reason))

    async def interrupt(self, session: str) -> bool:
        return bool(await self._do(self.worker.interrupt, session))

    async def sweep(self) -> int:
        return int(await self._do(self.worker.sweep))

    async def resident(self) -> list[str]:
        return list(self.worker.resident)

    async def records(self) -> list[Record]:
        """Of all agents that were ever built here."""
        return self.cast.records

    async def ended(self) -> list[str]:
        """Sessions whose end-of-session hook ran here."""
        return list(self.cast.ended)

    async def shut(self, gate: str) -> None:
        self.cast.shut(gate)

    async def unlock(self, gate: str = "") -> None:
        if gate:
            self.cast.open(gate)
        else:
            self.cast.open_all()

    async def deafen(self) -> None:
        """From now on every message to this worker is lost."""
        self.worker._engine.on_message = self.missed.append

    async def hear(self) -> None:
        """From now on messages arrive again."""
        del self.worker._engine.on_message

    async def settle(self) -> None:
        """Until everything that was said on the worker's channel so far is heard, and every release it led to is done.

        Channels keep their order: a message of our own is sent behind the others. This looks into the worker, because
        from outside nobody can tell "will not be released" from "not released yet".
        """
        engine, token, heard = self.worker._engine, f"settle/{secrets.token_hex(8)}", threading.Event()
        engine.line.enter(token, heard.set)
        message = json.dumps({"v": 1, "mode": "wake", "turn": token})

        def wait() -> None:
            engine.link._client.publish(engine.link.keys.channel(self.id), message)
            assert heard.wait(10), "the worker does not listen"
            engine.line.leave(token)
            for pool in (engine.departures.releases, engine.departures.endings):
                assert pool.finish(10), "releases do not end"

        await asyncio.to_thread(wait)


class LocalPlay:
    """A turn in this process."""

    def __init__(self, seat: LocalSeat, turn: Any) -> None:
        self.turn, self.session = turn, turn.session
        self.agent: Any = turn.agent
        self.serial: int = turn.agent.record.serial
        self._seat = seat
        self._using = ExitStack()
        self._using.enter_context(turn.agent.use())

    @property
    def fence(self) -> int:
        return int(self.turn.fence)

    @property
    def fresh(self) -> bool:
        return bool(self.turn.fresh)

    async def say(self, message: str = "hello") -> list[str]:
        self.agent.run(message)
        return list(self.agent.history)

    async def end(self, error: BaseException | None = None) -> None:
        self.agent = None
        self._using.close()
        leave = self.turn.__aexit__ if self._seat.kind == "async" else self.turn.__exit__
        await self._seat._do(leave, None if error is None else type(error), error, None)

    async def forget(self) -> None:
        self.agent = None
        self._using.close()
        self.turn = None
        gc.collect()


class Fleet:
    """All workers of a room, and somebody who looks at the room from outside (`hall`)."""

    def __init__(
        self, kind: str, stage: str, source: Any, client: redis.Redis, room: str, company: Any = None, broken: str = ""
    ) -> None:
        self.kind, self.stage, self.room, self.client = kind, stage, room, client
        self.source, self.broken = source, broken
        self.keys = Keys(room)
        self.clock = Clock(client, self.keys.prefix)
        self.hall = Coordinator(source, room, scripts=scripts(broken))
        self.backstage = Backstage()
        self.seats: list[Any] = []
        self.audited = True  #: at the end every agent must have been let go of exactly once
        self._company = company
        self._tap = LogTap()
        self._tap.attach()

    @property
    def in_processes(self) -> bool:
        return self.stage == "processes"

    # -- workers

    async def worker(self, *, limits: Limits | None = None, lease: float = LONG, **settings: Any) -> Any:
        """Start a worker in this room. It is closed when the test is over."""
        settings |= {"limits": limits or Limits(), "lease": lease, "worker": settings.pop("id", None)}
        settings.setdefault("drain_for", 0.1 if self.broken else 2.0)
        if self.in_processes:
            seat = await self._company.seat(self.kind, self.source, self.room, broken=self.broken, **settings)
        else:
            settings.setdefault("backstage", self.backstage)
            seat = LocalSeat(self.kind, self.source, self.room, broken=self.broken, **settings)
            await seat.start()
        self.seats.append(seat)
        return seat

    async def workers(self, count: int, **settings: Any) -> list[Any]:
        return list(await asyncio.gather(*(self.worker(**settings) for _ in range(count))))

    async def close(self) -> None:
        """End all workers, then look whether every agent was let go of once, and none during its turn."""
        try:
            await self.each(lambda seat: seat.unlock())
            nudging = asyncio.create_task(self._nudge())
            await self.each(lambda seat: seat.close())
            nudging.cancel()
            if self.audited and not self.broken:
                await self.audit()
        finally:
            for seat in self.seats:
                if self.in_processes:
                    self._company.give_back(seat)
            self.backstage.close()
            self._tap.detach()
            self.hall.close()

    async def _nudge(self) -> None:
        """A listener looks up five times a second whether it is to end. With something to hear it does so at once."""
        while True:
            for seat in self.alive:
                self.client.publish(self.keys.channel(seat.id), b"")
            await asyncio.sleep(0.01)

    async def audit(self) -> None:
        async def all_gone() -> bool:
            return all(record.gone for record in await self.records())

        await until(all_gone, what="the release of every agent")
        for record in await self.records():
            assert not record.violations, record
            assert record.gone == 1, record

    async def each(self, action: Callable[[Any], Awaitable[T]]) -> list[T]:
        return list(await asyncio.gather(*(action(seat) for seat in self.alive)))

    @property
    def alive(self) -> list[Any]:
        return [seat for seat in self.seats if not getattr(seat, "killed", False)]

    # -- turns

    @asynccontextmanager
    async def turn(self, seat: Any, session: str, config: Any = CONFIG, **options: Any) -> AsyncIterator[Any]:
        play = await seat.open(session, config, **options)
        try:
            yield play
        except BaseException as error:
            await play.end(error)
            raise
        await play.end()

    async def say(self, seat: Any, session: str, message: str = "hello", config: Any = CONFIG, **options: Any) -> Said:
        """A whole turn with one message."""
        async with self.turn(seat, session, config, **options) as play:
            history = await play.say(message)
            return Said(play.fresh, play.fence, play.serial, history)

    # -- what can be seen

    async def settle(self) -> None:
        """Until every worker has heard everything and let go of what it had to."""
        await self.each(lambda seat: seat.settle())

    async def records(self, session: str | None = None) -> list[Record]:
        """Of all agents ever built in the fleet, or those of one session, in the order in which they were built."""
        found = [record for records in await self.each(lambda seat: seat.records()) for record in records]
        return sorted((one for one in found if session in (None, one.session)), key=lambda record: record.fence)

    async def record(self, session: str) -> Record:
        """Of the only agent that was ever built for a session."""
        (record,) = await self.records(session)
        return record

    async def goes(self, session: str, how: str = "release") -> Record:
        """Wait until the only agent of a session is let go of, and check how: softly unless said otherwise."""

        async def gone() -> bool:
            return (await self.record(session)).gone > 0

        await until(gone, what=f"the {how} of {session}")
        record = await self.record(session)
        assert (record.released, record.closed) == ((1, 0) if how == "release" else (0, 1)), record
        assert record.client_closed
        return record

    async def untouched(self, *sessions: str) -> bool:
        """Whether nobody has laid a hand on the agents of these sessions, after everything was heard."""
        await self.settle()
        records = [record for name in sessions for record in await self.records(name)]
        return not any(record.gone or record.client_closed for record in records)

    def order(self) -> list[str]:
        """The sessions in the room, the least recently used first."""
        return [one.session for one in self.hall.sessions() if one.state == "live"]

    def look(self, session: str) -> Session:
        found = self.hall.session(session)
        assert found, f"{session} is not in the room"
        return found

    async def resident(self) -> list[str]:
        """What the workers hold, all of them together."""
        return sorted([name for names in await self.each(lambda seat: seat.resident()) for name in names])

    async def ended(self) -> list[str]:
        """Every run of the end-of-session hook in the fleet."""
        return [name for names in await self.each(lambda seat: seat.ended()) for name in names]

    def count(self, counter: str) -> int:
        return self.hall.counters().get(counter, 0)

    @property
    def evictions(self) -> int:
        return sum(value for name, value in self.hall.counters().items() if name.startswith("evictions:"))

    def events(self, event: str) -> list[dict[str, str]]:
        return [dict(entry.fields) for entry in self.hall.events(limit=10_000) if entry.event == event]

    async def warnings(self, words: str) -> list[str]:
        """The log records of level WARNING and above that hold these words, of all processes of the fleet."""
        messages = list(self._tap.messages)
        if self.in_processes:
            messages = [text for texts in await self.each(lambda seat: seat.warnings()) for text in texts]
        return [text for text in messages if words in text]
