"""The beat renews heartbeat and leases; the fence gives turns up whose lease was not renewed in time (G6).

Each is a thread of its own, and nothing else rides on them: what else a worker does (`workers/upkeep.py`), however slow
Redis is, delays neither. The fence needs no Redis at all.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from coordinator import operations as ops
from coordinator.errors import CoordinatorUnavailable, UnknownWorker, WorkerDraining, WorkerExists
from coordinator.link import run
from workers.rounds import Rounds
from workers.running import now

if TYPE_CHECKING:
    from workers.engine import Engine

logger = logging.getLogger("greenroom.beat")

#: The fence looks at least as often as this, in parts of a lease and in seconds: its clock counts suspend, its sleep
#: does not, and releases have limits too.
LOOK, LOOK_SECONDS = 1 / 20, 0.25


class Beat(Rounds):
    """Beats every third of a lease, and sooner while Redis does not answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._missed = 0
        super().__init__("beat", self._round, engine.settings.lease / 3)

    def _round(self) -> float:
        lease = self._engine.settings.lease
        try:
            self.renew()
        except WorkerDraining:  # it has left meanwhile
            self._stopping = True
        except WorkerExists:
            self._engine.displaced()
            self._stopping = True
        except CoordinatorUnavailable as error:
            if not self._missed:
                logger.warning("no beat, trying again: %s", error)
            self._missed += 1
            return lease / 20
        if self._missed:
            logger.warning("beating again after %d tries", self._missed)
        self._missed = 0
        return lease / 3 * random.uniform(0.9, 1.0)

    def renew(self) -> None:
        """Heartbeat and leases, RENEWALS at a time. Whoever is not told of as lost is good for another lease."""
        engine = self._engine
        turns = [turn for turn in engine.running.turns() if not turn.lost]
        for batch in list(ops.batches(turns, ops.RENEWALS)) or [[]]:
            sent = now()
            pairs = [(turn.session, turn.id) for turn in batch]
            try:
                epoch, state, lost = run(
                    ops.beat(engine.link, engine.worker, engine.lease_ms, engine.instance, pairs, retry=False)
                )
            except UnknownWorker:
                engine.rejoin()
                self.wake()
                return
            for turn in batch:
                if turn.id in lost:
                    engine.running.lose(turn)
                else:
                    turn._renewed = sent
            if epoch != engine.epoch:
                engine.rejoin()
            if state == "draining" and not engine.draining:
                engine.told_to_drain()


class Fence(Rounds):
    """Watches the time, by our own clock."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        super().__init__("fence", self._round, min(engine.settings.lease * LOOK, LOOK_SECONDS))

    def _round(self) -> float:
        left = [self._engine.running.fence(turn) for turn in self._engine.running.turns() if not turn.lost]
        self._engine.departures.check()
        return min([self._first, *(seconds for seconds in left if seconds > 0)])
