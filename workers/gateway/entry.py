"""`greenroom entry --to gateway:8000`: one address for many replicas, for where no balancer stands before them.

A connection goes to the replica that has the fewest of ours; if it cannot be reached, to the next. What is said over it
is not looked at: every replica knows where a session's agent is, and a balancer need not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import signal
import socket
import time
from collections import Counter
from typing import Any

from coordinator.cli.command import Subparsers
from workers.gateway.addresses import BACKLOG, bracketed, listen, port_number, stop_listening
from workers.gateway.logs import log_to_stderr
from workers.gateway.problems import Problem

logger = logging.getLogger("greenroom.entry")

CONNECT_FOR = 1.0
#: How long a client waits while no replica can be reached.
PATIENCE = 5.0
#: How long connections may stay open when we are told to go.
LEAVE_FOR = 30.0
_NONE = json.dumps(Problem("unavailable", "no replica can be reached").body()).encode()
_SORRY = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(_NONE), _NONE)
)

Place = tuple[str, int]
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def command(subparsers: Subparsers) -> None:
    """Register `greenroom entry`."""
    about = "one address for many replicas of a gateway"
    parser = subparsers.add_parser("entry", help=about, description=f"{about.capitalize()}.")
    parser.set_defaults(run=main)
    to = "where replicas are: every address that the name has; may be given more than once"
    parser.add_argument("--to", metavar="HOST:PORT", required=True, action="append", type=_place, help=to)
    parser.add_argument("--host", metavar="HOST", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", metavar="N", type=port_number, default=8000, help="0: any free one (8000)")


def main(options: argparse.Namespace) -> int:
    log_to_stderr()
    with listen(options.host, options.port) as listening:
        url = f"http://{bracketed(options.host)}:{listening.getsockname()[1]}"
        print(f"{url} leads to {', '.join(f'{bracketed(host)}:{port}' for host, port in options.to)}", flush=True)
        asyncio.run(Entry(options.to).serve(listening))
    return 0


def _place(text: str) -> Place:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise argparse.ArgumentTypeError(f"this is host:port, not {ascii(text)[:80]}")
    return host.strip("[]"), int(port)


class Entry:
    """Passes connections on to replicas."""

    def __init__(self, to: list[Place]) -> None:
        self._to = to
        self._open: Counter[Place] = Counter()  # connections by address and port
        self._passing: set[asyncio.Task[None]] = set()

    async def serve(self, listening: socket.socket) -> None:
        """Until told to go, and then for as long as connections are open. A second signal does not wait for them."""
        told, loop = asyncio.Semaphore(0), asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, told.release)
        server = await asyncio.start_server(self._accept, sock=listening, backlog=BACKLOG)
        await told.acquire()
        await stop_listening(listening, server.close)
        if self._passing:
            insisted: asyncio.Task[Any] = asyncio.create_task(told.acquire())
            ended: asyncio.Task[Any] = asyncio.create_task(asyncio.wait({*self._passing}, timeout=LEAVE_FOR))
            await asyncio.wait({insisted, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in self._passing:
            task.cancel()

    async def _accept(self, *client: *Ends) -> None:
        task = asyncio.current_task()
        assert task
        self._passing.add(task)
        try:
            await self._pass_on(client)
        except OSError as error:
            logger.debug("a connection broke: %s", error)
        finally:
            client[1].close()
            self._passing.discard(task)

    async def _pass_on(self, client: Ends) -> None:
        until = time.monotonic() + PATIENCE
        while not (replica := await self._reach()):
            if time.monotonic() > until:
                client[1].write(_SORRY)
                await client[1].drain()
                return
            await asyncio.sleep(0.1)
        place, there = replica
        self._open[place] += 1
        try:
            asking = asyncio.create_task(_pump(client[0], there[1]))
            await _pump(there[0], client[1])  # when the replica has said all, there is nothing left to ask
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        finally:
            self._open[place] -= 1
            there[1].close()

    async def _reach(self) -> tuple[Place, Ends] | None:
        """A connection to the replica with the fewest of ours that can be reached."""
        found: set[Place] = set()
        for host, port in self._to:
            with contextlib.suppress(OSError):  # nobody has that name, at the moment
                known = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
                found |= {(str(address[0]), port) for *_, address in known}
        for place in sorted(found, key=lambda one: (self._open[one], random.random())):
            with contextlib.suppress(OSError):
                async with asyncio.timeout(CONNECT_FOR):
                    return place, await asyncio.open_connection(*place)
        return None


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Whatever comes, until there is no more."""
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    with contextlib.suppress(OSError):
        target.write_eof()
