"""One address for many replicas: `greenroom entry`."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support import wait_until
from support.crowd import Crowd
from support.replicas import Replica, Street, at_once, is_problem


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Entry(Replica):
    """Is talked to like a replica."""

    worker = "entry"

    def __init__(self, log: Path, *to: str) -> None:
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coordinator", "entry", *(f"--to={one}" for one in to), "--port", "0"],
            stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        self.client = httpx.Client(timeout=60.0)
        assert self.process.stdout
        self.url = self.process.stdout.readline().split(" ")[0]


@contextmanager
def entry_to(street: Street, *to: str) -> Iterator[Entry]:
    entry = Entry(street.folder / "entry.log", *to)
    try:
        yield entry
    finally:
        entry.close()


def test_a_client_need_not_know_of_replicas(street: Street) -> None:
    """Clients of the entry, who keep their connections, do not notice that replicas are replaced."""
    fleet = [street.open(1, "--port", str(free_port()))[0] for _ in range(2)]
    with entry_to(street, *(one.url.removeprefix("http://") for one in fleet)) as entry:
        with entry.stream("s", "/drip 3") as got:
            assert [value.get("piece") for _, value in got][:-1] == ["0 ", "1 ", "2 "]
        with Crowd([entry]) as crowd:
            for old in fleet:
                crowd.answered(30)
                old.signal(signal.SIGTERM)
                assert old.ended() == 0
                street.open(1, "--port", old.url.rpartition(":")[2])
            crowd.answered(30)
        assert [one for one in crowd.sent if one.failed] == []
        entry.signal(signal.SIGTERM)
        assert entry.ended() == 0
        assert "Traceback" not in entry.log()


def test_the_replica_with_the_fewest_connections_is_taken(street: Street) -> None:
    """And one that cannot be reached is passed over."""
    replicas = street.open(3, "--no-affinity")
    with entry_to(street, *(one.url.removeprefix("http://") for one in replicas)) as entry:

        def turn(number: int) -> str:
            return httpx.post(entry.path(f"s{number}"), json={"message": "/sleep 1"}, timeout=30).json()["worker"]

        homes = at_once(*(lambda number=number: turn(number) for number in range(6)))
        assert sorted(homes.count(one.worker) for one in replicas) == [2, 2, 2]
        replicas[0].signal(signal.SIGKILL)
        replicas[0].ended()
        homes = at_once(*(lambda number=number: turn(number) for number in range(10, 14)))
        assert sorted(homes.count(one.worker) for one in replicas[1:]) == [2, 2]


def test_where_no_replica_can_be_reached(street: Street) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        with entry_to(street, f"127.0.0.1:{deaf.getsockname()[1]}") as entry:
            began = time.monotonic()
            refused = entry.turn("s")
            is_problem(refused, 503, "unavailable")
            assert refused.headers["retry-after"] == "1"
            assert 4.0 < time.monotonic() - began < 20.0


def test_a_client_that_hangs_up_is_gone_for_the_replica_too(street: Street) -> None:
    [one] = street.open(1, "--on-disconnect", "interrupt")
    with entry_to(street, one.url.removeprefix("http://")) as entry:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(entry.path("s"), json={"message": "/sleep 20"}, timeout=0.7)
        wait_until(lambda: len(street.notes("end")) == 1, 3.0)


def test_it_waits_for_what_is_under_way_when_it_goes(street: Street) -> None:
    [one] = street.open()
    with entry_to(street, one.url.removeprefix("http://")) as entry:

        def leave() -> None:
            entry.signal(signal.SIGTERM)

        answer, _ = at_once(lambda: httpx.post(entry.path("s"), json={"message": "/sleep 1"}, timeout=30), leave)
        assert answer.json()["reply"] == "slept"
        assert entry.ended() == 0
