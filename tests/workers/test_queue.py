"""Waiting for a busy session: first come, first served, and no polling storm."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from support import wait_until

from coordinator import SessionBusy
from coordinator.link import SyncLink
from coordinator.private_redis import PrivateRedis
from workers import Worker

Start = Callable[..., Worker]


class Line:
    """Waiters that arrive one after the other, and note in which order they were served."""

    def __init__(self, client: redis.Redis, room: str) -> None:
        self._client, self._key = client, f"greenroom:{{{room}}}:waiting:s"
        self._threads: list[threading.Thread] = []
        self.served: list[int] = []

    def join(self, worker: Worker, **options: Any) -> None:
        number = len(self._threads)

        def wait() -> None:
            with worker.turn("s", **options):
                self.served.append(number)

        self._threads.append(threading.Thread(target=wait))
        self._threads[-1].start()
        wait_until(lambda: self._client.zcard(self._key) == number + 1, what=f"waiter {number} in line")

    def finish(self) -> None:
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive(), "a waiter was never served"


@pytest.fixture
def line(client: redis.Redis, room: str) -> Line:
    return Line(client, room)


def test_first_come_first_served_across_workers(start: Start, line: Line, client: redis.Redis, room: str) -> None:
    workers = [start(), start(), start()]
    with workers[0].turn("s"):
        for number in range(9):
            line.join(workers[number % 3])
    line.finish()
    assert line.served == list(range(9))
    assert not client.keys(f"greenroom:{{{room}}}:wait*"), "nothing is left of the queue"


def test_waiting_costs_no_polling_storm(start: Start, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    begins = []
    call = SyncLink.call

    async def counted(self: SyncLink, name: str, *argv: Any, **options: Any) -> Any:
        begins.append(name) if name == "begin" else None
        return await call(self, name, *argv, **options)

    worker, other = start(lease=30.0), start(lease=30.0)
    with worker.turn("s"):
        for _ in range(8):
            line.join(other)
        monkeypatch.setattr(SyncLink, "call", counted)
        threading.Event().wait(1.0)
        assert begins == [], "whoever waits is woken; nobody asks again and again"
    line.finish()
    assert len(begins) == 8, "each was woken once, in its turn"


def test_no_waiting_never_jumps_the_queue(start: Start, line: Line) -> None:
    worker, other = start(), start()
    with worker.turn("s") as turn:
        line.join(other)
        # the session is free for a moment, but somebody is in line for it
        worker._engine.line._wakes.clear()
        other._engine.line._wakes.clear()
        del turn
    with pytest.raises(SessionBusy, match="waiting in line"), worker.turn("s", wait=0):
        pass
    line.finish()


def test_a_wait_that_times_out_gives_its_place_up(start: Start, client: redis.Redis, room: str) -> None:
    """H8: it never pretends to hold the lease, and leaves the holder's alone."""
    worker, other = start(), start()
    with worker.turn("s") as turn:
        before = client.hget(f"greenroom:{{{room}}}:session:s", "turn")
        with pytest.raises(SessionBusy) as raised, other.turn("s", wait=0.3):
            pass
        assert raised.value.worker == worker.id
        assert client.hget(f"greenroom:{{{room}}}:session:s", "turn") == before == turn.id.encode()
        assert not client.keys(f"greenroom:{{{room}}}:wait*")
    assert not turn.lost


_WAITER = """
import sys
from workers import Worker
with Worker(lambda request: object(), redis=sys.argv[1], room=sys.argv[2], lease=2.0) as worker:
    print("up", flush=True)
    with worker.turn("s", wait=60):
        print("granted", flush=True)
"""


@pytest.mark.parametrize("backend", ["real"], indirect=True)
def test_a_dead_waiter_at_the_head_is_skipped(
    start: Start, line: Line, server: PrivateRedis, client: redis.Redis, room: str
) -> None:
    worker = start(lease=2.0)
    with worker.turn("s"):
        dead = subprocess.Popen([sys.executable, "-c", _WAITER, server.url, room], stdout=subprocess.PIPE)
        wait_until(lambda: client.zcard(f"greenroom:{{{room}}}:waiting:s") == 1)
        line._threads.append(threading.Thread())  # the dead one counts as the first in line
        line.join(worker)
        dead.send_signal(signal.SIGKILL)
        dead.communicate()
    line._threads.pop(0)
    line.finish()
    assert line.served == [1]


@pytest.mark.parametrize("backend", ["real"], indirect=True)
def test_a_lost_wake_costs_a_poll_and_not_the_turn(start: Start, line: Line) -> None:
    worker, other = start(lease=2.0), start(lease=2.0)
    with worker.turn("s"):
        line.join(other)
        other._engine.line._wakes.clear()  # nobody will hear the wake
    line.finish()
    assert line.served == [0]
