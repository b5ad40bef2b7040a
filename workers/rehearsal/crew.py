"""One worker of the demo, in a process or a thread of its own: agents that pretend to build and answer, and clients
that send them messages. Everything it sees goes into its history.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import random
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from coordinator.errors import LeaseLost
from coordinator.limits import Limits
from workers.rehearsal.verdict import Created, Left, Record, Released, Rested, Trouble, TurnRecord, dump
from workers.turns import BuildRequest
from workers.worker import Worker

#: How long an agent's build and its answer take, in seconds.
BUILD, ANSWER = (0.05, 0.2), (0.005, 0.04)
#: A client's pause between two messages.
PAUSE = (0.0, 0.02)
#: Clients of a worker. A part of their messages belongs to sessions at home on another one: the balancer sent it here.
CLIENTS, STRAY = 4, 0.08
#: How much the busiest session gets more than the others: the weight of rank n is n to the power of -ZIPF.
ZIPF = 0.9
#: Every so many turns of a worker, the answer came from a fallback model; the chat was reset.
FALLBACK_EVERY, RESET_EVERY = 45, 110
#: A turn waits for a busy session that long; it is free much sooner.
WAIT = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What one worker of the demo is to do."""

    redis: Any
    room: str
    workers: tuple[str, ...]
    index: int  #: which of them this is
    sessions: tuple[str, ...]  #: the busiest first
    limits: Limits
    lease: float
    seed: int
    history: Path

    @property
    def worker(self) -> str:
        return self.workers[self.index]


class Member:
    """One worker, in a process or a thread of its own, and the pipe to it: when our end closes, it stops."""

    def __init__(self, plan: Plan, threads: bool) -> None:
        self.plan = plan
        self._ours, self._theirs = multiprocessing.Pipe()
        self._process: SpawnProcess | None = None
        self._thread = threading.Thread(target=run, args=(plan, self._theirs), daemon=True)
        if not threads:
            context = multiprocessing.get_context("spawn")
            self._process = context.Process(target=run_process, args=(plan, self._theirs), daemon=True)

    def start(self) -> None:
        (self._process or self._thread).start()
        if self._process:
            self._theirs.close()  # so that its end is noticed here

    def alive(self) -> bool:
        return (self._process or self._thread).is_alive()

    def joined(self, deadline: float) -> bool:
        """Wait until the worker is in the room; False: it will not be."""
        try:
            return self._ours.poll(max(0.0, deadline - time.monotonic())) and self._ours.recv() == "joined"
        except (EOFError, OSError):
            return False

    def send(self, times: tuple[float, float]) -> None:
        with contextlib.suppress(OSError):
            self._ours.send(times)

    def stop(self) -> None:
        self._ours.close()

    def end(self, deadline: float) -> str:
        """Wait for its end, and force it after the deadline. What went wrong, or ''."""
        runner = self._process or self._thread
        if runner.ident is None:
            return "was not started"
        runner.join(max(0.0, deadline - time.monotonic()))
        if runner.is_alive():
            self.kill()
            return "did not end by itself"
        code = self._process.exitcode if self._process else 0
        return f"ended with exit code {code}" if code else ""

    def kill(self) -> None:
        if self._process and self._process.is_alive():
            self._process.kill()
            self._process.join(5)


def run_process(plan: Plan, orders: Connection) -> None:
    """In a process of its own. Ctrl-C reaches it too: it is for the parent to say when to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    run(plan, orders)


def run(plan: Plan, orders: Connection) -> None:
    """Join, say so, wait for the start, serve until the end or an order to stop, leave."""
    with HistoryFile(plan) as history:
        try:
            _Server(plan, history, orders).serve()
            history.write(Left(plan.worker))
        except Exception as error:
            history.write(Trouble(plan.worker, f"{type(error).__name__}: {error}"))


class HistoryFile(logging.Handler):
    """Writes records, one a line. Also takes what the worker logs as an error: there should be none."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(logging.ERROR)
        self._plan = plan
        self._writing = threading.Lock()
        self._file = plan.history.open("a", encoding="utf-8", buffering=1)
        self.alive = 0  #: agents created and not released

    def write(self, record: Record) -> None:
        with self._writing:
            self.alive += isinstance(record, Created) - isinstance(record, Released)
            self._file.write(dump(record) + "\n")

    def emit(self, record: logging.LogRecord) -> None:
        self.write(Trouble(self._plan.worker, f"logged: {record.getMessage()}"))

    def __enter__(self) -> Self:
        logging.getLogger("greenroom").addHandler(self)  # with a handler there, nothing is printed into the view
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        logging.getLogger("greenroom").removeHandler(self)
        self._file.close()


class DemoAgent:
    """Takes a while to build and to answer, and knows whether it is in use."""

    def __init__(self, name: str, history: HistoryFile) -> None:
        self.name = name
        self._history, self._users = history, 0
        self._last_activity_ts = time.time()  # idle time counts

    def answer(self, seconds: float) -> None:
        self._users += 1
        time.sleep(seconds)
        self._last_activity_ts = time.time()
        self._users -= 1

    def release_clients(self) -> None:
        self._history.write(Released(self.name, "soft", self._users > 0, time.monotonic()))

    def close(self) -> None:
        self._history.write(Released(self.name, "hard", self._users > 0, time.monotonic()))


class _Server:
    """The worker with its clients."""

    def __init__(self, plan: Plan, history: HistoryFile, orders: Connection) -> None:
        self._plan, self._history, self._orders = plan, history, orders
        self._stop = threading.Event()
        self._random = random.Random(f"{plan.seed} {plan.index}")
        self._agents, self._turns = itertools.count(1), itertools.count(1)
        weights = [(rank + 1) ** -ZIPF for rank in range(len(plan.sessions))]
        everywhere = list(range(len(plan.sessions)))
        home = everywhere[plan.index :: len(plan.workers)] or everywhere
        self._home = home, list(itertools.accumulate(weights[rank] for rank in home))
        self._everywhere = everywhere, list(itertools.accumulate(weights))
        self._building: dict[int, float] = {}  # by fence: how long the builder took
        self._starts = self._ends = 0.0

    def serve(self) -> None:
        plan = self._plan
        with Worker(
            self._build, redis=plan.redis, room=plan.room, worker=plan.worker, limits=plan.limits,
            lease=plan.lease, drain_for=5.0, release_limit=5.0,
        ) as worker:  # fmt: skip
            self._orders.send("joined")
            try:
                self._starts, self._ends = self._orders.recv()
            except EOFError:  # called off, or the parent is gone
                return
            clients = [threading.Thread(target=self._client, args=(worker, n), daemon=True) for n in range(CLIENTS)]
            for client in clients:
                client.start()
            self._obey()
            for client in clients:
                client.join(WAIT + 5)
            self._rest(worker)

    def _obey(self) -> None:
        """Until the end, an order to stop, or the parent's own end."""
        with contextlib.suppress(OSError):
            self._orders.poll(max(0.0, self._ends - time.monotonic()))
        self._stop.set()

    def _rest(self, worker: Worker) -> None:
        """No turn runs here any more: once the releases under way are done, whatever was not released is here."""
        deadline = time.monotonic() + 5
        while (resident := len(worker.resident)) != (alive := self._history.alive) and time.monotonic() < deadline:
            time.sleep(0.01)
        self._history.write(Rested(self._plan.worker, resident, alive))

    def _build(self, request: BuildRequest) -> DemoAgent:
        began = time.monotonic()
        time.sleep(self._random.uniform(*BUILD))
        name = f"{self._plan.worker}/{next(self._agents)}"
        now = time.monotonic()
        self._history.write(Created(name, request.session, now))
        self._building[request.fence] = now - began
        return DemoAgent(name, self._history)

    def _client(self, worker: Worker, number: int) -> None:
        rng = random.Random(f"{self._plan.seed} {self._plan.index} {number}")
        self._stop.wait(max(0.0, self._starts - time.monotonic()) + rng.uniform(0, 0.1))
        while not self._stop.is_set():
            ranks, weights = self._everywhere if rng.random() < STRAY else self._home
            try:
                self._message(worker, rng.choices(ranks, cum_weights=weights)[0], rng)
            except Exception as error:
                self._history.write(Trouble(self._plan.worker, f"{type(error).__name__}: {error}"))
            self._stop.wait(rng.uniform(*PAUSE))

    def _message(self, worker: Worker, rank: int, rng: random.Random) -> None:
        """One message of a chat: a turn, and now and then what else happens to a session."""
        session, number = self._plan.sessions[rank], next(self._turns)
        name, accepted, entered, leaving, asked = "", True, 0.0, 0.0, time.monotonic()
        turn = worker.turn(session, self._config(rank), wait=WAIT)
        try:
            with turn:
                entered, name = time.monotonic(), turn.agent.name
                turn.agent.answer(rng.uniform(*ANSWER))
                if number % FALLBACK_EVERY == 0:
                    turn.evict_after("fallback")
                leaving = time.monotonic()
        except LeaseLost:
            accepted = False
        left = time.monotonic()
        if not name:  # lost during its build
            entered = leaving = left
        building = self._building.pop(turn.fence, 0.0)
        self._history.write(
            TurnRecord(
                self._plan.worker, session, name, turn.fence, turn.fresh, accepted,
                asked, entered, leaving, left, building,
            )
        )  # fmt: skip
        if number % RESET_EVERY == 0:
            worker.evict(session, mode="hard", reason="reset")

    def _config(self, rank: int) -> dict[str, Any]:
        """Half-way through, some chats change to another model."""
        half = time.monotonic() > (self._starts + self._ends) / 2
        return {"model": "opus" if half and rank % 4 == 1 else "sonnet", "toolsets": ["web", "files"]}
