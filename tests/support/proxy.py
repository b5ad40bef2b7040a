"""A TCP proxy between a client and Redis that can cut the line or swallow an answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards to a port. `swallow(word)` drops the answer to the next request with `word`, and cuts that line."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lines: set[socket.socket] = set()
        self._swallow: bytes | None = None
        self.swallowed = 0
        self._cut = False
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        self.cut()

    def swallow(self, word: str) -> None:
        with self._lock:
            self._swallow = word.encode()

    def cut(self) -> None:
        """No way through, from now on; open lines break."""
        with self._lock:
            self._cut = True
            for line in self._lines:
                with contextlib.suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._cut = False

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                with self._lock:  # a line that is made while the others are cut is cut, too
                    if self._cut:
                        client.close()
                        server.close()
                        continue
                    self._lines |= {client, server}
                drop = threading.Event()
                threading.Thread(target=self._pump, args=(client, server, drop, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, drop, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, drop: threading.Event, asking: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self._lock:
                    if asking and self._swallow and self._swallow in data:
                        self._swallow = None
                        drop.set()
                if not asking and drop.is_set():
                    self.swallowed += 1
                    break
                target.sendall(data)
        for line in (source, target):  # the other pump wakes up, and closes its own end
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._lines.discard(source)
        source.close()
