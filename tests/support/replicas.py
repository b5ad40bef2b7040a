"""Gateway replicas as processes, and what is said to them over HTTP."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import redis

CHOIR = "support.choir:build"
PROBLEM = "application/problem+json"
TESTS = Path(__file__).parents[1]


class Replica:
    """One `greenroom serve`, in a process of its own."""

    def __init__(self, source: str, room: str, log: Path, *options: str, agent: str = CHOIR, **environ: Any) -> None:
        self._log = log.open("ab")
        variables = {f"GREENROOM_{name.upper()}": str(value) for name, value in environ.items() if name != "choir"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "coordinator", "serve", "--agent", agent, "--redis", source, "--room", room,
             "--port", "0", "--json", *options],
            stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, "PYTHONPATH": str(TESTS), "CHOIR": str(environ.get("choir", "")), **variables},
        )  # fmt: skip
        self.client = httpx.Client(timeout=60.0)

    def wait(self) -> Replica:
        """Until it listens."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"it did not start: {Path(self._log.name).read_text()[-2000:]}"
        about = json.loads(line)
        self.url, self.worker, self.address = about["url"], about["worker"], about["address"]
        return self

    def turn(self, session: str, message: Any = "hello", **more: Any) -> httpx.Response:
        """POST a message; `headers` and `client` apart from the body's fields."""
        headers = more.pop("headers", None)
        return self.client.post(self.path(session), json={"message": message} | more, headers=headers)

    def path(self, session: str) -> str:
        return f"{self.url}/v1/sessions/{quote(session, safe='')}/turns"

    @contextmanager
    def stream(self, session: str, message: str = "hello", **more: Any) -> Iterator[Iterator[tuple[str, Any]]]:
        """POST a message and read events as they come."""
        headers = {"Accept": "text/event-stream"} | more.pop("headers", {})
        body = {"message": message} | more
        with self.client.stream("POST", self.path(session), json=body, headers=headers) as response:
            yield events(response)

    def get(self, path: str) -> httpx.Response:
        return self.client.get(self.url + path)

    def reset(self, session: str) -> httpx.Response:
        return self.client.delete(self.path(session).removesuffix("/turns"))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = 30.0) -> int:
        """Its exit code."""
        return self.process.wait(seconds)

    def log(self) -> str:
        return Path(self._log.name).read_text()

    def close(self) -> None:
        """End it, whatever it does."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(20.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        assert self.process.stdout
        self.process.stdout.close()
        self._log.close()


def events(response: httpx.Response) -> Iterator[tuple[str, Any]]:
    """Names and values of server-sent events."""
    response.raise_for_status()
    assert response.headers["content-type"].startswith("text/event-stream"), response.headers
    rest = b""
    for data in response.iter_bytes():  # httpx ends lines at U+2028, too
        *blocks, rest = (rest + data).split(b"\n\n")
        for name, _, value in (block.partition(b"\n") for block in blocks):
            if name.startswith(b"event: "):
                yield name[7:].decode(), json.loads(value.removeprefix(b"data: "))


def is_problem(response: httpx.Response, status: int, code: str) -> dict:
    """A problem as it is described; gives its body."""
    assert (response.status_code, response.headers["content-type"]) == (status, PROBLEM), response.text
    body = response.json()
    assert (body["status"], body["code"], body["type"]) == (status, code, f"/docs#{code}")
    assert body["title"]
    assert body["detail"]
    return body


class Street:
    """Replicas of one room, and the agents' own account of what they did."""

    def __init__(self, source: str, room: str, folder: Path) -> None:
        self.source, self.room, self.folder = source, room, folder
        self._choir = folder / "choir.jsonl"
        self.replicas: list[Replica] = []
        self.redis = redis.Redis.from_url(source, decode_responses=True)

    def open(self, count: int = 1, *options: str, **environ: Any) -> list[Replica]:
        settings = {"lease": 3.0, "choir": self._choir} | environ
        first = len(self.replicas)
        new = [
            Replica(self.source, self.room, self.folder / f"{first + n}.log", *options, **settings)
            for n in range(count)
        ]
        self.replicas += new
        return [one.wait() for one in new]

    def notes(self, what: str, session: str = "") -> list[dict[str, Any]]:
        """What the agents wrote down."""
        lines = self._choir.read_text().splitlines() if self._choir.exists() else []
        found = [json.loads(line) for line in lines]
        return [one for one in found if one["what"] == what and one["session"] in (session or one["session"],)]

    def begun(self, session: str = "") -> list[str]:
        """The messages whose turns the agents have begun."""
        return [note["message"] for note in self.notes("begin", session)]

    def key(self, name: str) -> str:
        return f"greenroom:{{{self.room}}}:{name}"

    def close(self) -> None:
        for one in self.replicas:
            one.close()
        self.redis.close()


def at_once(*calls: Any) -> list[Any]:
    """Make calls in threads of their own, each a little after the one before; what they return."""
    results: list[Any] = [None] * len(calls)

    def call(place: int) -> None:
        try:
            results[place] = calls[place]()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=call, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
        time.sleep(0.15)
    for thread in threads:
        thread.join()
    return results
