"""What a worker is, apart from how its callers wait: copies, open turns, and the threads that keep both true.

`Worker` and `AsyncWorker` share it. Its own work is done by plain threads over a sync link, also for the async worker:
a blocked event loop must not stop renewal.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import inspect
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from coordinator import operations as ops
from coordinator.codec import Message, pairs, text
from coordinator.errors import GreenroomError, LeaseLost
from coordinator.limits import Limits
from coordinator.link import SyncLink, run
from coordinator.names import mode_name, new_worker_name, reason_name, session_name, worker_name
from coordinator.scripts import Script
from coordinator.settings import Settings, limits_from
from workers.beat import Beat
from workers.copies import Copies, Copy
from workers.lifecycle import Lifecycle
from workers.listener import Listener
from workers.releases import Releases
from workers.turns import Hold, TurnState

logger = logging.getLogger("greenroom.worker")

#: The clock that counts suspend, where there is one: a lease runs out while the machine sleeps, too (G6).
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
#: A turn is given up when this part of its lease has passed without a renewal. What is left is more than one beat's
#: attempt can take, so that it is noticed before Redis gives the session away.
FENCE_AT = 0.75


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
        self.settings = Settings.load(redis=redis, room=room, **settings)
        self.worker = worker_name(worker) if worker is not None else new_worker_name()
        self.limits = limits if limits is not None else limits_from()
        self.lifecycle = lifecycle or Lifecycle()
        self.lease_ms = int(self.settings.lease * 1000)
        self.copies = Copies()
        self.releases = Releases(self.settings.release_threads, self.settings.release_limit)
        self.floor = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self.draining = False
        self.epoch = ""
        self._scripts = scripts
        self._turns: dict[str, weakref.ref[TurnState]] = {}  # by turn id: those to be renewed
        self._unfinished: set[str] = set()  # turn ids, until Redis has heard of their end
        self._idle = threading.Condition()
        self._wakes: dict[str, Callable[[], None]] = {}
        self._closing: dict[str, Future[None]] = {}
        self._ending: set[tuple[str, int]] = set()
        self._joining = threading.RLock()
        self._leaving = threading.Lock()
        self._releasing = threading.RLock()
        self._orphans: collections.deque[tuple[str, str, Hold]] = collections.deque()
        self._pid = 0
        self._left = False

    # -- joining and leaving

    def start(self) -> None:
        """Join the room, keep the beat and listen. Everything that belongs to a process is made here, after fork."""
        self._pid = os.getpid()
        # Two waits fit into the part of a lease behind FENCE_AT: to connect, and for an answer.
        self.link = SyncLink(
            self.settings, self._scripts, timeout=min(self.settings.socket_timeout, self.settings.lease / 10)
        )
        self._beat, self._listener = Beat(self), Listener(self)
        try:
            self.rejoin()
        except BaseException:
            run(self.link.close())
            raise
        self._listener.start()
        self._beat.start()

    def check_process(self) -> None:
        if self._pid != os.getpid():
            why = "was started in another process: make it after fork" if self._pid else "is not started: use `with`"
            raise RuntimeError(f"this worker {why}")
        if self._left:
            raise RuntimeError("this worker has left the room")

    def rejoin(self) -> None:
        """Register, and reconcile: at the start, and whenever Redis does not know us or lost its state."""
        with self._joining:
            self.epoch, _ = run(
                ops.register(
                    self.link,
                    self.worker,
                    self.lease_ms,
                    epoch=self.epoch,
                    floor=self.floor,
                    address=self.settings.address,
                    host=socket.gethostname(),
                    pid=self._pid,
                    state="draining" if self.draining else "up",
                )
            )
            self.reconcile()

    def leave(self) -> None:
        """Drain: turns end, copies are released, the worker is deregistered. A second caller waits for the first."""
        self.draining = True
        with self._leaving:
            if self._left or not self._pid:
                return
            self._quietly("drain", lambda: run(ops.drain(self.link, self.worker)))
            with self._idle:
                self._idle.wait_for(lambda: not self._unfinished, self.settings.drain_for)
                open_turns = len(self._unfinished)
            if open_turns:
                logger.warning("leaving with %d turns open after %.0f s", open_turns, self.settings.drain_for)
            self._left = True
            self._quietly("evict its copies", lambda: self.shed(len(self.copies), "drain"))
            for copy in self.copies.idle():
                self.discard(copy.session, copy.generation, "soft", "drain")
            self.releases.drain(self.settings.release_limit + 1)
            self._beat.stop()
            self._listener.stop()
            self._quietly("deregister", lambda: run(ops.deregister(self.link, self.worker)))
            self.releases.stop()
            run(self.link.close())

    def _quietly(self, what: str, action: Callable[[], Any]) -> None:
        """Leaving goes on without Redis."""
        try:
            action()
        except GreenroomError as error:
            logger.warning("could not %s: %s", what, error)

    # -- turns

    def now(self) -> float:
        """This process's own clock; a lease is counted from before its request was sent."""
        return time.clock_gettime(_CLOCK)

    def open(self, turn: TurnState) -> None:
        """The turn has its lease: renew it from now on, for as long as somebody has hold of the turn."""
        self.floor = max(self.floor, turn.fence)
        with self._idle:
            self._turns[turn.id] = weakref.ref(turn)
            self._unfinished.add(turn.id)
        turn._finalizer = weakref.finalize(turn, self._orphans.append, (turn.id, turn.session, turn._hold))
        turn._finalizer.atexit = False

    def close(self, turn: TurnState) -> None:
        """The turn is about to end: it is not renewed any more."""
        if turn._finalizer:
            turn._finalizer.detach()
        with self._idle:
            self._turns.pop(turn.id, None)

    def finished(self, turn_id: str) -> None:
        """The turn has ended, as far as that could be done: a worker that leaves need not wait for it."""
        with self._idle:
            self._turns.pop(turn_id, None)
            self._unfinished.discard(turn_id)
            self._idle.notify_all()

    def end_orphans(self) -> None:
        """Turns that nobody has hold of any more and that were never ended (H9); their agents cannot be trusted."""
        while self._orphans:
            turn_id, session, hold = self._orphans.popleft()
            logger.warning("a turn on %r was dropped without its end", session)
            mode = "soft"
            try:
                mode = run(ops.end(self.link, session, turn_id, self.limits, counts=False, evict="soft lost")).mode
            except LeaseLost:  # it was still building, or its lease ran out before we came
                run(ops.abandon(self.link, session, turn_id))
            finally:
                if copy := hold.copy:
                    self.discard(copy.session, copy.generation, mode, "lost")
                    self.unpin(copy)
                self.finished(turn_id)

    def turns(self) -> list[TurnState]:
        with self._idle:
            found = [reference() for reference in self._turns.values()]
        return [turn for turn in found if turn is not None]

    def lose(self, turn: TurnState) -> None:
        """The turn's claim is gone. Its agent is asked to stop, and is not used again."""
        if turn.lost or turn.id not in self._turns:
            return
        turn.lost = True
        logger.warning("lost the lease of %r", turn)
        self._interrupt(turn)

    def counts(self, copy: Copy) -> bool:
        """Whether idle time counts for this agent."""
        try:
            return self.lifecycle.last_activity(copy.agent) is not None
        except Exception:
            logger.exception("no activity timestamp of %r", copy.session)
            return False

    def warn_over(self, over: int) -> None:
        if over:
            logger.warning("over the cap by %d: every candidate for eviction is mid-turn", over)

    # -- waiting in line

    def on_wake(self, turn_id: str, wake: Callable[[], None]) -> None:
        self._wakes[turn_id] = wake

    def forget_wake(self, turn_id: str) -> None:
        self._wakes.pop(turn_id, None)

    def wake_all(self) -> None:
        """Messages may have been missed: everybody in line looks for himself."""
        for wake in list(self._wakes.values()):
            wake()

    # -- copies and their releases

    def unpin(self, copy: Copy) -> None:
        with self._releasing:
            if gone := self.copies.unpin(copy):
                self.release(gone)

    def discard(self, session: str, generation: int, mode: str, reason: str) -> None:
        """The copy must go, now or when its turn is over."""
        with self._releasing:
            if gone := self.copies.discard(session, generation, mode, reason):
                self.release(gone)

    def is_closing(self, session: str) -> bool:
        """Whether a hard close of this session is under way here."""
        with self._releasing:  # nobody is between taking the copy out and handing it on
            return session in self._closing

    def await_closing(self, session: str) -> None:
        """Wait for the hard close of this session that is under way here; it has its time limit."""
        if done := self._closing.get(session):
            with contextlib.suppress(Exception):
                done.exception(self.settings.release_limit)

    def release(self, copy: Copy) -> None:
        """Hand a copy that nobody has any more to the background pool."""
        session, generation, mode = copy.session, copy.generation, copy.mode
        agent, copy.agent = copy.agent, None
        lifecycle = self.lifecycle

        def release() -> None:
            nonlocal agent
            try:
                try:
                    self._call(lifecycle.keep, agent)
                finally:
                    self._call(lifecycle.close if mode == "hard" else lifecycle.release, agent)
            finally:
                agent = None  # frees its message history (H7)
                if mode == "hard":
                    self._ended(session, generation)

        logger.info("releasing %r: %s, %s", session, mode, copy.reason)
        if mode == "hard":
            self._ending.add((session, generation))
        done = self.releases.submit(f"the {mode} release of {session!r}", release)
        if mode == "hard":
            self._closing[session] = done
            done.add_done_callback(lambda _: self._closing.pop(session, None))

    def end_session(self, session: str, generation: int) -> None:
        """The session is over and nobody holds it: run its hook, once."""
        if (session, generation) in self._ending:
            return
        self._ending.add((session, generation))

        def end() -> None:
            try:
                self._call(self.lifecycle.end_session, session)
            finally:
                self._ended(session, generation)

        self.releases.submit(f"the end of {session!r}", end)

    def _ended(self, session: str, generation: int) -> None:
        """Tell Redis that nobody else has to end this session."""
        self._quietly(
            "report a session's end", lambda: run(ops.closed(self.link, self.worker, [(session, generation)]))
        )
        self._ending.discard((session, generation))

    def _call(self, method: Callable[..., Any], argument: Any) -> None:
        """A method of the lifecycle; a coroutine runs on the worker's event loop, or on one of its own."""
        result = method(argument)
        if not inspect.isawaitable(result):
            return
        if self.loop and self.loop.is_running():
            asyncio.run_coroutine_threadsafe(_await(result), self.loop).result(self.settings.release_limit)
        else:
            asyncio.run(_await(result))

    def _interrupt(self, turn: TurnState) -> None:
        copy = turn._copy
        if copy is not None:
            agent = copy.agent
            self.releases.submit(f"the interrupt of {turn!r}", lambda: self._call(self.lifecycle.interrupt, agent))

    # -- what Redis says

    def on_message(self, message: Message) -> None:
        """A hint from our channel: compared with what is here before anything is done."""
        if message.mode in ("soft", "hard"):
            self.discard(message.session, message.generation, message.mode, message.reason)
        elif message.mode == "wake":
            if wake := self._wakes.get(message.turn):
                wake()
        elif message.mode == "interrupt":
            for turn in self.turns():
                if turn.session == message.session and turn.fence == message.fence:
                    self._interrupt(turn)
        elif message.mode == "drain":
            self._beat.wake()

    def reconcile(self) -> None:
        """Compare what we hold with what Redis says, both ways (rule 14)."""
        with self._joining:
            running = {(turn.session, turn.fence): turn for turn in self.turns()}
            by_copy = {id(turn._copy): turn for turn in running.values() if turn._copy}
            claims = [self._claim(copy, by_copy.get(id(copy))) for copy in self.copies]
            claims += [
                ops.Claim(turn.session, turn.fence, turn.signature, "building", turn.id, turn.fence, turn._key, False)
                for turn in running.values()
                if turn.fresh and not turn._copy
            ]
            for batch in ops.batches(claims, ops.BATCH):
                verdicts = run(ops.claim(self.link, self.worker, self.lease_ms, self.floor, batch))
                for claim, verdict in zip(batch, verdicts, strict=True):
                    if verdict != "keep":
                        self._dismissed(claim, verdict)
            self._disown()
            self._finish_endings()

    def _claim(self, copy: Copy, turn: TurnState | None) -> ops.Claim:
        turn_id, fence, key = (turn.id, turn.fence, turn._key) if turn else ("", copy.generation, "")
        return ops.Claim(copy.session, copy.generation, copy.signature, "live", turn_id, fence, key, self.counts(copy))

    def _dismissed(self, claim: ops.Claim, mode: str) -> None:
        """Redis does not know this copy as ours."""
        for turn in self.turns():
            if turn.id == claim.turn:
                self.lose(turn)
        self.discard(claim.session, claim.generation, mode, "lost")

    def _disown(self) -> None:
        """What Redis says we hold and we do not."""
        after = "-inf"
        while True:
            command = (
                "ZRANGEBYSCORE",
                self.link.keys.held(self.worker),
                f"({after}",
                "+inf",
                "WITHSCORES",
                "LIMIT",
                0,
                256,
            )
            flat = run(self.link.read(*command))
            if not flat:
                return
            after, names = text(flat[-1]), [text(name) for name in flat[::2]]
            generations = run(
                self.link.read_many([("HGET", self.link.keys.session(name), "generation") for name in names])
            )
            known = [(name, int(generation or 0)) for name, generation in zip(names, generations, strict=True)]
            run(ops.disown(self.link, self.worker, [copy for copy in known if not self.copies.holds(*copy)]))

    def _finish_endings(self) -> None:
        """Hard closes that were left to us and whose message got lost."""
        for session, value in pairs(run(self.link.read("HGETALL", self.link.keys.closing))).items():
            owner, _, generation = value.rpartition(" ")
            if owner == self.worker and not self.copies.holds(session, int(generation)):
                self.end_session(session, int(generation))

    # -- what callers ask for

    def shed(self, count: int, reason: str) -> int:
        """Evict our oldest idle copies, at most `count`; those mid-turn stay."""
        names = [copy.session for copy in self.copies.idle()[:count]]
        return run(ops.evict_many(self.link, names, "soft", reason, worker=self.worker, skip_busy=True))[0]

    def evicted(self, session: str, mode: str, reason: str, answer: ops.Evicted) -> bool:
        """After an eviction that a caller of ours asked for: what there is to do here."""
        if answer.kind == "evicted" and answer.worker == self.worker:
            self.discard(session, answer.generation, mode, reason)
        if answer.kind == "absent" and mode == "hard":
            self.end_session(session, 0)
        return answer.found

    def told_to_drain(self) -> None:
        """An operator wants this worker empty. It stays in the room, takes no new sessions, and lets idle copies go."""
        logger.warning("told to drain")
        self.draining = True

    def check_session(self, session: str) -> None:
        self.check_process()
        session_name(session)

    def check_eviction(self, session: str, mode: str, reason: str) -> None:
        self.check_session(session)
        mode_name(mode)
        reason_name(reason)


async def _await(awaitable: Any) -> Any:
    return await awaitable
