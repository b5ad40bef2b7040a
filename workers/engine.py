"""What a worker is, apart from how its callers wait: copies, running turns, and the threads that keep both true.

`Worker` and `AsyncWorker` share it. Its own work is done by plain threads over a sync link, also for the async worker:
a blocked event loop must not stop renewal.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from coordinator import operations as ops
from coordinator.answers import Evicted
from coordinator.codec import Message
from coordinator.errors import (
    AlreadyStarted,
    GreenroomError,
    UnknownWorker,
    WorkerDraining,
    WorkerExists,
    WorkerNotRunning,
)
from coordinator.limits import Limits
from coordinator.link import SyncLink, run
from coordinator.names import mode_name, new_worker_name, reason_name, session_name, worker_name
from coordinator.scripts import Script
from coordinator.settings import Settings, limits_from
from workers.beat import Beat, Fence
from workers.copies import Copies, Copy
from workers.departures import Departures
from workers.lifecycle import Lifecycle
from workers.listener import Listener
from workers.reconcile import reconcile
from workers.rounds import within
from workers.running import Line, Running
from workers.upkeep import Upkeep

logger = logging.getLogger("greenroom.worker")


class Engine:
    """One worker of a room."""

    def __init__(
        self,
        redis: Any,
        room: str | None,
        *,
        worker: str | None,
        limits: Limits | None,
        lifecycle: Lifecycle | None,
        scripts: Mapping[str, Script] | None,
        settings: Mapping[str, Any],
    ) -> None:
        self.worker = worker_name(worker) if worker is not None else new_worker_name()
        self.settings = Settings.load(redis=redis, room=room, **settings)
        self.limits = limits if limits is not None else limits_from()
        self.lifecycle = lifecycle or Lifecycle()
        self.copies = Copies()
        self.instance = secrets.token_hex(8)  #: which start of the worker this is: its id may have been used before
        self.departures = Departures(self.settings, self.worker, self.instance, self.lifecycle, self.copies)
        self.running = Running(self.settings, self.lifecycle, self.departures)
        self.line = Line()
        self.lease_ms = int(self.settings.lease * 1000)
        self.draining = False
        self.epoch = ""
        self._scripts = scripts
        self._joining = threading.RLock()
        self._leaving = threading.Lock()
        self._pid = 0
        self._left = False
        self._redis_away = False  # Redis did not hear something that was said when leaving
        self._displaced = False
        self._called_off = threading.Event()

    # -- joining and leaving

    def start(self) -> None:
        """Join the room, keep the beat and listen. Everything that belongs to a process is made here, after fork."""
        if self._pid:
            raise AlreadyStarted("this worker was started before: make another one")
        self._pid = os.getpid()
        # What the beat calls may take: to connect, for an answer, and both once more. It has to notice in time that it
        # cannot renew.
        short = self.settings.lease / 10
        settings = replace(self.settings, retry_for=min(self.settings.retry_for, short))
        self.link = SyncLink(settings, self._scripts, timeout=min(self.settings.socket_timeout, short))
        self.departures.link = self.running.link = self.link
        self._beat, self._fence, self.upkeep, self._listener = Beat(self), Fence(self), Upkeep(self), Listener(self)
        self.departures.unheard = self.upkeep.wake
        try:
            self._join_first()
        except BaseException:
            self._pid = 0
            run(self.link.disconnect())
            raise
        self._listener.start()
        for thread in (self._fence, self._beat, self.upkeep):
            thread.start()
        atexit.register(self.leave)

    def _join_first(self) -> None:
        """Join. If a worker with our id is there, it may be what a crash left behind: its heartbeat runs out soon. If
        it goes on beating, it is alive, and we are not wanted."""
        beats, waited = set[str](), False
        while True:
            try:
                return self.rejoin()
            except WorkerExists as error:
                beats.add(error.expiry)
                if len(beats) > 1 or self._called_off.is_set():
                    raise
                if not waited:
                    logger.warning("%s; waiting %.1f s for its heartbeat to run out", error, error.left)
                waited = True
                self._called_off.wait(min(error.left + 0.005, 0.25))

    def call_off(self) -> None:
        """Whoever wanted us to start does not want it any more."""
        self._called_off.set()

    def displaced(self) -> None:
        """We were silent for so long that another worker could take our id. Nothing here counts any more."""
        if self._displaced:
            return
        logger.error("another worker has taken the place of %s: its turns are lost, its agents go", self.worker)
        self._displaced = self.draining = True
        for turn in self.running.turns():
            self.running.lose(turn)
        for copy in self.copies:
            self.departures.discard(copy.session, copy.generation, "soft", "lost")

    @property
    def started(self) -> bool:
        return bool(self._pid)

    @property
    def foreign(self) -> bool:
        """Whether this is a fork of the process that started the worker: nothing here is its own (H12)."""
        return self._pid not in (0, os.getpid())

    def check_running(self) -> None:
        if self.foreign:
            raise WorkerNotRunning("this worker was started in another process: make it after fork")
        if self._left:
            raise WorkerNotRunning("this worker has left the room")
        if self._displaced:
            raise WorkerNotRunning("another worker has taken this one's id, and its place")
        if not self._pid:
            raise WorkerNotRunning("this worker is not started: use `with`")

    def rejoin(self) -> None:
        """Register, and reconcile: at the start, and whenever Redis does not know us or lost its state."""
        with self._joining:
            if self._left:
                raise WorkerDraining("this worker has left the room")
            known = self.epoch
            try:
                self.epoch, _ = run(
                    ops.register(
                        self.link,
                        self.worker,
                        self.lease_ms,
                        epoch=self.epoch,
                        floor=self.running.floor,
                        address=self.settings.address,
                        host=socket.gethostname(),
                        pid=self._pid,
                        state="draining" if self.draining else "up",
                        instance=self.instance,
                        cap=self.limits.worker,
                    )
                )
            except WorkerExists:
                if known:
                    self.displaced()
                raise
            if known and known != self.epoch:
                for copy in self.copies:
                    copy.saved = None  # Redis lost its snapshot with everything else
            self.reconcile()

    def drain(self, deadline: float | None = None) -> None:
        """Take no new sessions, and let what is idle go at once. The room is told first, if that can be done in time:
        whoever sees that we drain can rely on it."""
        deadline = deadline or time.monotonic() + self.settings.retry_for
        self._say("drain", lambda: run(ops.drain(self.link, self.worker, self.instance)), deadline)
        self.draining = True
        self.upkeep.wake()

    def leave(self) -> None:
        """Drain: turns end, copies are released, the worker is deregistered. A second caller waits for the first."""
        with self._leaving:
            if self._left or self._pid != os.getpid():  # not started, or a fork of who did
                return
            self.draining = True
            deadline = time.monotonic() + self.settings.leave_for
            self.drain(deadline)
            patience = min(self.settings.drain_for, deadline - time.monotonic())
            if still := self.running.wait(patience):
                logger.warning("leaving with %d turns open after %.0f s", still, patience)
            self._left = True
            self._say("evict its copies", lambda: self.shed(len(self.copies), "drain"), deadline)
            for copy in self.copies.idle():
                self.departures.discard(copy.session, copy.generation, "soft", "drain")
            self.departures.hurry()
            if not self.departures.finish(deadline):
                logger.warning("leaving with releases under way after %.0f s in all", self.settings.leave_for)
            if self.departures.has_unreported:
                logger.error("leaving with an end of session that Redis has not heard of: another worker does it again")
            threads = (self.upkeep, self._beat, self._fence, self._listener)
            for thread in threads:
                thread.stop()
            for thread in threads:
                thread.join(max(0.25, deadline - time.monotonic()))
            self._say("deregister", lambda: run(ops.deregister(self.link, self.worker, self.instance)), deadline)
            self.departures.stop()
            run(self.link.disconnect())
            atexit.unregister(self.leave)

    def _say(self, what: str, action: Callable[[], Any], deadline: float) -> None:
        """Without Redis, leaving goes on, and no longer than it may take. Behind the deadline a Redis that answered so
        far is still told, in a moment."""
        left = deadline - time.monotonic()
        if left <= 0 and self._redis_away:
            return

        def act() -> None:
            try:
                action()
            except GreenroomError as error:
                self._redis_away = True
                logger.warning("could not %s: %s", what, error)

        if not within(max(left, 0.5), what, act):
            self._redis_away = True
            logger.warning("could not %s in time", what)

    # -- turns

    def warn_over(self, over: int) -> None:
        if over:
            logger.warning("over the cap by %d: every candidate for eviction is mid-turn", over)

    def is_stamped(self, copy: Copy) -> bool:
        """Whether idle time counts for this agent."""
        try:
            return self.lifecycle.last_activity(copy.agent) is not None
        except (Exception, SystemExit):
            logger.exception("no activity timestamp of %r", copy.session)
            return False

    # -- what Redis says

    def on_message(self, message: Message) -> None:
        """A hint from our channel: compared with what is here before anything is done."""
        if message.mode in ("soft", "hard"):
            self._departs(message)
        elif message.mode == "wake":
            self.line.wake(message.turn)
        elif message.mode == "interrupt":
            for turn in self.running.turns():
                if turn.session == message.session and turn.fence == message.fence:
                    self.running.interrupt(turn)
        elif message.mode == "drain":
            self._beat.wake()

    def _departs(self, message: Message) -> None:
        """A copy of ours is out of the room, or a session's end is ours to carry out: if Redis says so, too."""
        session, generation = message.session, message.generation
        held = self.copies.holds(session, generation)
        mode = run(self.departures.fate(session, generation)) if held or message.mode == "hard" else "keep"
        if held and mode != "keep":
            self.departures.discard(session, generation, mode, message.reason)
        elif mode == "hard":  # nobody holds an agent any more, but the session's end is ours
            self.departures.end_session(session, generation)

    def reconcile(self) -> None:
        """Compare what we hold with what Redis says, both ways (rule 14)."""
        with self._joining:
            try:
                reconcile(self)
            except UnknownWorker:  # Redis came back empty, or took us for dead: register first
                self.rejoin()

    # -- what callers ask for

    def shed(self, count: int, reason: str) -> int:
        """Evict our oldest idle copies, at most `count`; those mid-turn stay."""
        names = [copy.session for copy in self.copies.idle()[:count]]
        return run(ops.evict_many(self.link, names, "soft", reason, worker=self.worker, skip_busy=True))[0]

    def evicted(self, session: str, mode: str, reason: str, answer: Evicted) -> bool:
        """After an eviction that a caller of ours asked for: what there is to do here."""
        if answer.kind == "evicted" and answer.worker == self.worker:
            self.departures.discard(session, answer.generation, mode, reason)
        if answer.kind == "ending" and answer.worker == self.worker:
            self.departures.end_session(session, answer.generation)
        return answer.found

    def told_to_drain(self) -> None:
        """An operator wants this worker empty. It stays in the room, takes no new sessions, and lets idle copies go."""
        logger.warning("told to drain")
        self.draining = True
        self.upkeep.wake()

    def check_session(self, session: str) -> None:
        self.check_running()
        session_name(session)

    def check_eviction(self, session: str, mode: str, reason: str) -> None:
        self.check_session(session)
        mode_name(mode)
        reason_name(reason)
