"""One worker of the demo, in a process or a thread of its own: agents that pretend to build and answer, and clients that
send them messages. Everything it sees goes into its history.
"""

from __future__ import annotations

import itertools
import logging
import random
import signal
import threading
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from coordinator.errors import LeaseLost
from coordinator.limits import Limits
from workers.demo_check import Created, Left, Record, Released, Rested, Trouble, TurnRecord, dump
from workers.turns import BuildRequest
from workers.worker import Worker

#: How long an agent's build and its answer take, in seconds.
BUILD, ANSWER = (0.05, 0.2), (0.005, 0.04)
#: A client's pause between two messages.
PAUSE = (0.0, 0.02)
#: Clients of a worker. A part of their messages belongs to sessions at home on another one: the balancer sent it here.
CLIENTS, STRAY = 4, 0.08
#: How much the busiest session gets more than the others: the weight of rank n is n to the power of -ZIPF.
ZIPF = 1.1
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

    def write(self, record: Record) -> None:
        with self._writing:
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

    def __init__(self, name: str, history: HistoryFile, building: float) -> None:
        self.name, self.building = name, building
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
        self._numbers, self._turns = itertools.count(1), itertools.count(1)
        self._alive = 0
        self._counting = threading.Lock()
        weights = [(rank + 1) ** -ZIPF for rank in range(len(plan.sessions))]
        everything = range(len(plan.sessions))
        home = [rank for rank in everything if rank % len(plan.workers) == plan.index] or list(everything)
        self._home = home, list(itertools.accumulate(weights[rank] for rank in home))
        self._all = list(everything), list(itertools.accumulate(weights))
        self._worker = Worker(
            self._build, redis=plan.redis, room=plan.room, worker=plan.worker, limits=plan.limits,
            lifecycle=_Counting(self), lease=plan.lease, drain_for=5.0, release_limit=5.0,
        )  # fmt: skip
