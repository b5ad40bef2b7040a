"""A thread that does something again and again, and outlives every error."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger("greenroom.worker")


def within(seconds: float, what: str, action: Callable[[], object]) -> bool:
    """Do something that may hang, and wait for it for so long at most. Whether it was done."""
    thread = threading.Thread(target=action, name=f"greenroom-{what}", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is shutting down and starts no more threads: do it here
        action()
    else:
        thread.join(max(0.0, seconds))
    return not thread.is_alive()


class Rounds:
    """`action` is called, says for how many seconds to wait, and is called again; sooner after an error or a `wake`."""

    def __init__(self, name: str, action: Callable[[], float], first: float) -> None:
        self._name, self._action, self._first = name, action, first
        self._woken = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"greenroom-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Do it now."""
        self._woken.set()

    def stop(self) -> None:
        """After the round that is under way."""
        self._stopping = True
        self.wake()

    def join(self, seconds: float) -> None:
        """Until it has stopped, for so long at most."""
        if self._thread is not threading.current_thread() and self._thread.ident:
            self._thread.join(seconds)

    def _run(self) -> None:
        pause = self._first
        while True:
            self._woken.wait(pause)
            self._woken.clear()
            if self._stopping:
                return
            try:
                pause = self._action()
            except Exception:
                logger.exception("the %s failed and goes on", self._name)
                pause = self._first / 6
