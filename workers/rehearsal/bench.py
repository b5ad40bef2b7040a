"""`greenroom bench http`: what a warm turn over HTTP costs beyond the agent, measured side by side in one run."""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import track
from rich.table import Table

from coordinator.cli.command import BadUsage, Subparsers, add_command
from coordinator.private_redis import NoRedisServer, PrivateRedis

#: Rounds are interleaved: each contender in each round, in turns.
ROUNDS, TURNS = 40, 100
QUICK = 5
WARM_UP = 50
SESSION = "telegram:12345"


@dataclass(frozen=True, slots=True)
class Figure:
    """Milliseconds of one contender: medians over the rounds of each round's percentile."""

    name: str
    p50: float
    p99: float
    added: float  #: to the stock gateway's p50, in the same round
    low: float  #: of that, the quartiles over the rounds
    high: float


def command(subparsers: Subparsers) -> None:
    """Register `greenroom bench`."""
    parser = add_command(subparsers, "bench", main, "measure, side by side in one run")
    parser.add_argument("what", choices=["http"], help="http: a warm turn on an echo agent, with and without Greenroom")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")


def main(options: argparse.Namespace) -> int:
    if options.redis:
        raise BadUsage("a bench has a Redis of its own")
    try:
        figures = over_http(QUICK if options.quick else ROUNDS, quiet=options.json)
    except NoRedisServer as error:
        raise BadUsage(str(error)) from None
    if options.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=2))
        return 0
    table = Table(title="A warm turn on an echo agent, one client, ms", title_justify="left")
    for heading in ("", "p50", "p99", "added to p50", "quartiles"):
        table.add_column(heading, justify="left" if not heading else "right")
    for one in figures:
        spread = f"{one.low:.3f} … {one.high:.3f}"
        table.add_row(one.name, f"{one.p50:.3f}", f"{one.p99:.3f}", f"{one.added:+.3f}", spread)
    Console().print(table)
    return 0


def over_http(rounds: int, quiet: bool = False) -> list[Figure]:
    """A warm turn: on a stock gateway, on the replica that has the agent, and on one that passes the message on."""
    with ExitStack() as stack:
        redis = stack.enter_context(PrivateRedis())
        serve = ["-m", "coordinator", "serve", "--agent", "workers.gateway.echo:build", "--redis", redis.url]
        stock = stack.enter_context(_server("-m", "workers.rehearsal.stock"))
        home, other = (stack.enter_context(_server(*serve, "--port", "0", "--json")) for _ in range(2))
        turns = [stack.enter_context(_client(url)) for url in (stock, home, other)]
        names = ["stock gateway", "local turn", "forwarded turn"]
        for turn in turns:  # the first message to `home` makes the session's home there
            for _ in range(WARM_UP):
                turn()
        times: list[list[list[float]]] = [[] for _ in turns]
        for _ in track(range(rounds), "measuring", disable=quiet, console=Console(stderr=True)):
            for place, turn in enumerate(turns):
                times[place].append(sorted(turn() for _ in range(TURNS)))
    return [_figure(name, mine, times[0]) for name, mine in zip(names, times, strict=True)]


def _figure(name: str, rounds: list[list[float]], stock: list[list[float]]) -> Figure:
    added = [statistics.median(mine) - statistics.median(theirs) for mine, theirs in zip(rounds, stock, strict=True)]
    low, middle, high = statistics.quantiles(added, n=4)
    p50 = statistics.median(map(statistics.median, rounds))
    return Figure(name, p50, statistics.median(one[int(len(one) * 0.99)] for one in rounds), middle, low, high)


@contextmanager
def _server(*words: str) -> Iterator[str]:
    """A gateway in a process of its own, until it is told to go; its URL."""
    quiet = {**os.environ, "GREENROOM_LOG_LEVEL": "ERROR"}
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=quiet)
    try:
        assert process.stdout
        yield json.loads(process.stdout.readline() or '{"url": ""}')["url"]
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=10)
        process.kill()
        process.wait()


@contextmanager
def _client(url: str) -> Iterator[Callable[[], float]]:
    """Sends a message over a connection that stays open; how many ms its answer took."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=30)
    body = json.dumps({"message": "what shall we do with the drunken sailor"})
    headers = {"Content-Type": "application/json"}

    def turn() -> float:
        began = time.perf_counter()
        connection.request("POST", f"/v1/sessions/{SESSION}/turns", body, headers)
        response = connection.getresponse()
        data = response.read()
        took = (time.perf_counter() - began) * 1000
        if response.status != 200:
            raise RuntimeError(f"{url} answered {response.status}: {data.decode()}")
        return took

    try:
        yield turn
    finally:
        connection.close()
