"""The rest of what a worker does in the background: a little maintenance of the room, its memory limit, turns that were
dropped, reports that Redis has not heard. Rides on the beat's time, but on a thread of its own."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, cast

from coordinator import operations as ops
from coordinator.codec import text
from coordinator.errors import CoordinatorUnavailable, WorkerDraining, WorkerExists
from coordinator.link import run
from workers.memory import MemoryGuard, collect_and_trim, resident_bytes
from workers.rounds import Rounds

if TYPE_CHECKING:
    from workers.engine import Engine

logger = logging.getLogger("greenroom.upkeep")

#: Batches of maintenance in one round, and the part of a lease they may take; the rest waits for the next.
ROUNDS, PART = 64, 1 / 6


class Upkeep(Rounds):
    """Every third of a lease; sooner while Redis refuses a report. None of it is any one worker's job (rule 13)."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._memory = MemoryGuard()
        super().__init__("upkeep", self._round, engine.settings.lease / 3)

    def _round(self) -> float:
        engine, lease = self._engine, self._engine.settings.lease
        try:
            if engine.departures.has_unreported:
                engine.departures.report()
            engine.running.end_orphans(engine.limits)
            self._keep_memory_limit()
            if engine.draining:
                engine.shed(len(engine.copies), "drain")
            self._maintain()
        except (WorkerDraining, WorkerExists):  # it has left meanwhile, or another has taken its place
            self._stopping = True
        except CoordinatorUnavailable as error:  # the beat says so, too
            logger.info("no upkeep: %s", error)
        return lease / 20 if engine.departures.has_unreported else lease / 3 * random.uniform(0.9, 1.0)

    def _maintain(self) -> None:
        engine = self._engine
        seconds = engine.settings.lease * PART
        flow = ops.maintain(
            engine.link, "all", engine.limits, worker=engine.worker, paced=True, calls=ROUNDS, seconds=seconds
        )
        done = run(flow)
        engine.warn_over(done.over)
        for session, generation in done.endings:
            engine.departures.end_session(session, generation)

    def _keep_memory_limit(self) -> None:
        """Over the memory limit: shed idle agents in small batches, oldest first, and say so."""
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
