"""The beat: one thread renews heartbeat and leases and does a little maintenance. It outlives every error."""

from __future__ import annotations

import logging
import random
import threading
from typing import TYPE_CHECKING, cast

from coordinator import operations as ops
from coordinator.codec import text
from coordinator.errors import CoordinatorUnavailable, UnknownWorker, WorkerDraining
from coordinator.link import run
from workers.memory import MemoryGuard, collect_and_trim, resident_bytes

if TYPE_CHECKING:
    from workers.engine import Engine

logger = logging.getLogger("greenroom.beat")

#: Batches of maintenance in one beat, and the part of a lease they may take; the rest waits for the next.
ROUNDS, PART = 64, 1 / 6
#: A turn is given up when this part of its lease has passed without a renewal. What is left is more than an attempt to
#: renew can take, so that it is noticed before Redis gives the session away.
FENCE_AT = 0.7


class Beat:
    """Beats every third of a lease, and sooner while Redis does not answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._wake = threading.Event()
        self._stopping = False
        self._missed = 0
        self._thread = threading.Thread(target=self._run, name="greenroom-beat", daemon=True)
        self._memory = MemoryGuard()

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Beat now."""
        self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self.wake()
        self._thread.join()

    def _run(self) -> None:
        lease = self._engine.settings.lease
        pause = lease / 3
        while not self._stopping:
            self._wake.wait(pause * random.uniform(0.9, 1.0))
            self._wake.clear()
            try:
                self.fence()
                self.renew()
                pause = lease / 3
                if self._missed:
                    logger.warning("beating again after %d tries", self._missed)
                self._missed = 0
                self.maintain()
            except WorkerDraining:
                return  # it has left meanwhile
            except CoordinatorUnavailable as error:
                pause = lease / 20
                if not self._missed:
                    logger.warning("no beat, trying again: %s", error)
                self._missed += 1
            except Exception:
                pause = lease / 20
                logger.exception("the beat failed and goes on")

    def fence(self) -> None:
        """Give up, by our own clock, turns that could not be renewed for too long (G6)."""
        now = self._engine.now()
        for turn in self._engine.turns():
            if now - turn._renewed > self._engine.settings.lease * FENCE_AT:
                self._engine.lose(turn)

    def renew(self) -> None:
        """Heartbeat and leases, RENEWALS at a time. Whoever is not told of as lost is good for another lease."""
        engine = self._engine
        turns = [turn for turn in engine.turns() if not turn.lost]
        for batch in list(ops.batches(turns, ops.RENEWALS)) or [[]]:
            sent = engine.now()
            pairs = [(turn.session, turn.id) for turn in batch]
            try:
                epoch, state, lost = run(ops.beat(engine.link, engine.worker, engine.lease_ms, pairs, retry=False))
            except UnknownWorker:
                engine.rejoin()
                self.wake()
                return
            for turn in batch:
                if turn.id in lost:
                    engine.lose(turn)
                else:
                    turn._renewed = sent
            if epoch != engine.epoch:
                engine.rejoin()
            if state == "draining" and not engine.draining:
                engine.told_to_drain()

    def maintain(self) -> None:
        """Everything that rides on the beat. None of it is any one worker's job (rule 13)."""
        engine = self._engine
        engine.end_orphans()
        engine.releases.check()
        engine.interrupts.check()
        self._hold_memory()
        if engine.draining:
            engine.shed(len(engine.copies), "drain")
        seconds = engine.settings.lease * PART
        flow = ops.maintain(
            engine.link, "all", engine.limits, worker=engine.worker, paced=True, calls=ROUNDS, seconds=seconds
        )
        done = run(flow)
        engine.warn_over(done.over)
        for session, generation in done.endings:
            engine.end_session(session, generation, left_over=True)

    def _hold_memory(self) -> None:
        """Over the memory limit: shed idle agents in small batches, oldest first, and say so ."""
        engine = self._engine
        limit = self._limit()
        if limit is None:
            return
        if self._memory.before:
            collect_and_trim()
        resident, gave_up = resident_bytes(), self._memory.gave_up_at
        count = self._memory.to_shed(limit, resident, len(engine.copies.idle()))
        if count:
            shed = engine.shed(count, "memory")
            logger.warning("over the memory limit (%d of %d bytes): shed %d idle agents", resident, limit, shed)
        elif self._memory.gave_up_at and not gave_up:
            logger.error("over the memory limit (%d of %d bytes), and shedding agents frees nothing", resident, limit)

    def _limit(self) -> int | None:
        """The memory limit in force: the room's, else our own."""
        engine = self._engine
        value = run(engine.link.read("HGET", engine.link.keys.settings, "memory"))
        if value is None:
            return cast(int | None, engine.limits.memory)  # Limits made it a number
        return None if text(value) == "none" else int(value)
