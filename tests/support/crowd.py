"""Clients that talk to a fleet of replicas all at once, and what became of each of their messages."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from support import wait_until
from support.replicas import events

SESSIONS = [f"chat:{number}" for number in range(12)]


class Reached(Protocol):
    """A replica, as far as a client needs to know it."""

    worker: str

    def path(self, session: str) -> str: ...


@dataclass
class Sent:
    """What became of one message."""

    session: str
    message: str
    to: str  #: the worker that it was sent to
    at: float = field(default_factory=time.time)
    done: float = 0.0
    answer: dict[str, Any] = field(default_factory=dict)
    failed: str = ""


class Crowd:
    """Clients that send numbered messages to any replica. Where nobody listens they ask the next one, as a balancer
    does; they send nothing twice."""

    def __init__(self, replicas: list[Any], clients: int = 6) -> None:
        self.replicas: list[Reached] = replicas
        self.sent: list[Sent] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def answered(self, count: int) -> None:
        """Wait until so many more messages have been answered."""
        wanted = len(self.sent) + count
        wait_until(lambda: len(self.sent) >= wanted, 30.0)

    def _client(self, number: int) -> None:
        chance = random.Random(number)
        with httpx.Client(timeout=60.0) as client:
            count = 0
            while not self._stop.is_set():
                count += 1
                self._say(client, chance, f"{number}.{count} says {'a word ' * chance.randrange(4)}")

    def _say(self, client: httpx.Client, chance: random.Random, message: str) -> None:
        session, streamed = chance.choice(SESSIONS), chance.random() < 0.5
        for replica in chance.sample(self.replicas, len(self.replicas)) * 20:
            sent = Sent(session, message, replica.worker)
            try:
                sent.answer = self._ask(client, replica, session, message, streamed)
            except httpx.ConnectError:
                time.sleep(0.05)
                continue
            except Exception as error:
                sent.failed = f"{type(error).__name__}: {error}"
            sent.done = time.time()
            self.sent.append(sent)
            return
        raise AssertionError("nobody listens")

    @staticmethod
    def _ask(client: httpx.Client, replica: Reached, session: str, message: str, streamed: bool) -> Any:
        if not streamed:
            response = client.post(replica.path(session), json={"message": message})
            if response.status_code != 200:
                raise RuntimeError(f"{response.status_code} {response.text}")
            return response.json()
        headers = {"Accept": "text/event-stream"}
        with client.stream("POST", replica.path(session), json={"message": message}, headers=headers) as response:
            if response.status_code != 200:
                raise RuntimeError(f"{response.status_code} {response.read().decode()}")
            *_, (name, value) = events(response)
        if name != "end":
            raise RuntimeError(f"{name} {value}")
        return value
