"""SIGTERM drains, where nobody else has a handler: turns end, copies are released, the process exits with 0."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class DrainOnTerminate:
    """For the first worker of the main thread. The drain has a thread of its own: the main one may be mid-turn."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._installed = False
        self._draining = False
        self._drained = False
        self._lock = threading.Lock()

    def install(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_signal)
            self._installed = True

    def remove(self) -> None:
        if not self._installed or threading.current_thread() is not threading.main_thread():
            return
        with self._lock:
            if signal.getsignal(signal.SIGTERM) == self._on_signal:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._installed = False

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._drained:
            raise SystemExit(0)
        if not self._draining:
            self._draining = True
            threading.Thread(target=self._drain, name="greenroom-drain", daemon=True).start()

    def _drain(self) -> None:
        try:
            self._leave()
        finally:
            self._drained = True
            with self._lock:
                if self._installed:  # else the main thread is on its way out by itself
                    os.kill(os.getpid(), signal.SIGTERM)
