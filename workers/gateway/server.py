"""Starts a replica, and ends it: SIGTERM, Ctrl-C or an operator's drain, each by the same way out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from workers.gateway.addresses import stop_listening
from workers.gateway.app import application
from workers.gateway.gateway import Gateway

#: A connection is kept for longer than a client keeps it in its pool, so that it is not closed under a new request.
KEEP_ALIVE = 75
#: How long turns may take that still run when the replica has drained, and were asked to stop.
STOP_FOR = 5.0
#: So often we look whether an operator has told the worker to drain.
LOOK_EVERY = 0.2


logger = logging.getLogger("greenroom.gateway")


class _Server(uvicorn.Server):
    """Uvicorn without its own opinion of signals: the first calls `drain`; with the second, `hurry`, it waits for no
    connection any longer. Both are called in a signal handler."""

    def __init__(
        self,
        config: uvicorn.Config,
        announce: Callable[[], None],
        drain: Callable[[], object],
        hurry: Callable[[], object],
    ) -> None:
        super().__init__(config)
        self._announce, self._drain, self._hurry, self._signals = announce, drain, hurry, 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._announce()

    def stop_listening(self) -> None:
        for listener in self.servers:
            listener.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._signals == 1:
            self._drain()
        else:
            self.should_exit = self.force_exit = True
            self._hurry()


async def serve(gateway: Gateway, listening: socket.socket, announce: Callable[[], None]) -> None:
    """Join the room, serve until told to go, and leave it."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    async with gateway:
        config = uvicorn.Config(
            application(gateway),
            log_config=None,
            access_log=False,
            server_header=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=int(STOP_FOR),
        )
        soon = loop.call_soon_threadsafe
        server = _Server(config, announce, lambda: soon(told.set), lambda: soon(gateway.hurry))
        serving = asyncio.create_task(server.serve([listening]))
        while not (told.is_set() or gateway.worker.draining or serving.done()):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), LOOK_EVERY)
        if not serving.done():
            draining = asyncio.create_task(_drain(gateway, server, listening))
            await asyncio.wait({serving, draining}, return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
        await serving
    if gateway.busy:  # neither the loop nor Python would end before they do
        logger.warning("leaving with %d messages that did not stop", gateway.busy)
        logging.shutdown()
        os._exit(0)


async def _drain(gateway: Gateway, server: _Server, listening: socket.socket) -> None:
    """It listens for as long as turns run, passing on what comes for others. Then no message that was sent to us before
    we stopped to listen is left without an answer."""
    until = time.monotonic() + gateway.settings.drain_for
    await gateway.drain(until)
    await stop_listening(listening, server.stop_listening)
    await gateway.drain(until)
