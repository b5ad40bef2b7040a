"""The turns of a worker that run: renewed, watched, and ended for those who dropped them."""

from __future__ import annotations

import collections
import logging
import threading
import time
import weakref
from collections.abc import Callable

from coordinator import operations as ops
from coordinator.errors import LeaseLost
from coordinator.limits import Limits
from coordinator.link import SyncLink, run
from coordinator.settings import Settings
from workers.departures import Departures
from workers.lifecycle import Lifecycle
from workers.turns import InUse, TurnState

logger = logging.getLogger("greenroom.worker")

#: A turn is given up when this part of its lease has passed without a renewal. What is left is more than the fence can
#: be late on a busy machine, so that it is noticed before Redis gives the session away.
FENCE_AT = 0.7
#: The clock that counts suspend, where there is one: a lease runs out while the machine sleeps, too (G6).
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """This process's own clock; a lease is counted from before its request was sent."""
    return time.clock_gettime(_CLOCK)


class Running:
    """Every turn from its lease to its end. `floor`: the highest fence so far."""

    link: SyncLink

    def __init__(self, settings: Settings, lifecycle: Lifecycle, departures: Departures) -> None:
        self._settings, self._lifecycle, self._departures = settings, lifecycle, departures
        self._turns: dict[str, weakref.ref[TurnState]] = {}  # by turn id: those to be renewed
        self._unfinished: set[str] = set()  # turn ids, until Redis has heard of their end
        self._changed = threading.Condition()
        self._orphans: collections.deque[tuple[str, str, InUse]] = collections.deque()
        self.floor = 0

    def add(self, turn: TurnState) -> None:
        """The turn has its lease: renew it from now on, for as long as somebody has hold of the turn."""
        turn._began = now()
        with self._changed:
            self.floor = max(self.floor, turn.fence)
            self._turns[turn.id] = weakref.ref(turn)
            self._unfinished.add(turn.id)
        turn._finalizer = weakref.finalize(turn, self._orphans.append, (turn.id, turn.session, turn._in_use))
        turn._finalizer.atexit = False

    def remove(self, turn: TurnState) -> None:
        """The turn is about to end: it is not renewed any more."""
        if turn._finalizer:
            turn._finalizer.detach()
        with self._changed:
            self._turns.pop(turn.id, None)

    def finished(self, turn_id: str) -> None:
        """The turn has ended, as far as that could be done: a worker that leaves need not wait for it."""
        with self._changed:
            self._turns.pop(turn_id, None)
            self._unfinished.discard(turn_id)
            self._changed.notify_all()

    def wait(self, seconds: float) -> int:
        """Until all have ended, for so long at most. How many have not."""
        with self._changed:
            self._changed.wait_for(lambda: not self._unfinished, seconds)
            return len(self._unfinished)

    def turns(self) -> list[TurnState]:
        with self._changed:
            found = [reference() for reference in self._turns.values()]
        return [turn for turn in found if turn is not None]

    def end_orphans(self, limits: Limits) -> None:
        """Turns that nobody has hold of any more and that were never ended (H9); their agents cannot be trusted."""
        while self._orphans:
            turn_id, session, in_use = self._orphans.popleft()
            logger.warning("a turn on %r was dropped without its end", session)
            mode = "soft"
            try:
                mode = run(ops.end(self.link, session, turn_id, limits, stamped=False, evict="soft lost")).mode
            except LeaseLost:  # it was still building, or its lease ran out before we came
                run(ops.abandon(self.link, session, turn_id, limits))
            finally:
                if copy := in_use.copy:
                    self._departures.discard(copy.session, copy.generation, mode, "lost")
                    self._departures.unpin(copy)
                self.finished(turn_id)

    def fence(self, turn: TurnState) -> float:
        """The seconds left by our own clock. A turn that was not renewed for too long, or that hangs, is given up."""
        left = turn._renewed + self._settings.lease * FENCE_AT - now()
        if self._settings.turn_limit:
            left = min(left, turn._began + self._settings.turn_limit - now())
        if left <= 0:
            self.lose(turn)
        return left

    def lose(self, turn: TurnState) -> None:
        """The turn's claim is gone. Its agent is asked to stop, and is not used again."""
        with self._changed:
            if turn.lost or turn.id not in self._turns:
                return
            turn.lost = True
        logger.warning("lost the lease of %r", turn)
        self.interrupt(turn)

    def interrupt(self, turn: TurnState) -> None:
        """Ask the agent to stop; not from here, and not if the turn is over by then."""
        copy, reference = turn._copy, weakref.ref(turn)

        def interrupt() -> None:
            running = reference()
            if copy is not None and running is not None and running._copy is copy:
                self._departures.call(self._lifecycle.interrupt, copy.agent)

        self._departures.interrupts.submit(f"the interrupt of {turn!r}", interrupt)


class Line:
    """Who waits in line here, to be woken."""

    def __init__(self) -> None:
        self._wakes: dict[str, Callable[[], None]] = {}

    def enter(self, turn_id: str, wake: Callable[[], None]) -> None:
        self._wakes[turn_id] = wake

    def leave(self, turn_id: str) -> None:
        self._wakes.pop(turn_id, None)

    def wake(self, turn_id: str) -> None:
        if wake := self._wakes.get(turn_id):
            wake()

    def wake_all(self) -> None:
        """Messages may have been missed: everybody in line looks for himself."""
        for wake in list(self._wakes.values()):
            wake()

    def __len__(self) -> int:
        return len(self._wakes)
