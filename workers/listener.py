"""The eviction listener: one thread, one connection. Messages are hints; when some may be missed, it reconciles."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from coordinator.clients import sync_client
from coordinator.codec import message
from coordinator.errors import CoordinatorUnavailable, WorkerDraining, WorkerExists

if TYPE_CHECKING:
    from workers.engine import Engine

logger = logging.getLogger("greenroom.listener")


class Listener:
    """Listens on the worker's channel, reconciles at every (re)subscribe and on a timer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stopping = threading.Event()
        self._subscribed = threading.Event()
        self._deaf = False
        self._thread = threading.Thread(target=self._run, name="greenroom-listener", daemon=True)

    def start(self) -> None:
        """Start, and wait until the channel is open: what is said from then on is heard."""
        self._thread.start()
        self._subscribed.wait(self._engine.settings.socket_timeout)

    def stop(self) -> None:
        self._stopping.set()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except (WorkerDraining, WorkerExists):
                return  # it has left meanwhile, or another has taken its place
            except (RedisError, OSError, CoordinatorUnavailable) as error:
                if not self._deaf:
                    logger.warning("not listening, trying again: %s", type(error).__name__)
                self._deaf = True
            except Exception:
                logger.exception("the listener failed and goes on")
            self._stopping.wait(random.uniform(0.05, 0.5))

    def _listen(self) -> None:
        engine = self._engine
        settings = engine.settings
        client = sync_client(settings.redis, timeout=settings.socket_timeout, connections=2)
        due, unanswered = time.monotonic() + settings.reconcile_every, False
        try:
            with client.pubsub() as channel:
                channel.subscribe(engine.link.keys.channel(engine.worker))
                while not self._stopping.is_set():
                    item = channel.get_message(timeout=0.2)
                    kind = item["type"] if item else ""
                    if kind == "message" and (heard := message(item["data"])) is not None:
                        engine.on_message(heard)
                    unanswered = unanswered and kind != "pong"
                    if kind == "subscribe":
                        self._subscribed.set()
                        if self._deaf:
                            logger.warning("listening again")
                        self._deaf = False
                    if kind == "subscribe" or time.monotonic() > due:
                        if unanswered:
                            raise ConnectionError("the line is dead: no answer since the last look")
                        channel.ping()
                        due, unanswered = time.monotonic() + settings.reconcile_every, True
                        engine.reconcile()
                        engine.line.wake_all()
        finally:
            client.close()
            client.connection_pool.disconnect()
