"""A replica: takes messages, gives each a turn on the session's agent, and goes when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

from coordinator.errors import GreenroomError, LeaseLost, MessageAnswered, SessionBusy, SessionElsewhere, WorkerDraining
from workers.aio import AsyncTurn, AsyncWorker
from workers.gateway.exchange import Exchange
from workers.gateway.hops import Hop, Neighbours, Untaken
from workers.gateway.performance import Performance
from workers.gateway.problems import Interrupted, Problem, problem_of
from workers.gateway.requests import Message
from workers.gateway.settings import GatewaySettings
from workers.lifecycle import Lifecycle
from workers.turns import Build

logger = logging.getLogger("greenroom.gateway")

#: How many replicas are asked to take a message that one which is about to go cannot take itself.
PLACES = 4


class Stopping(Lifecycle):
    """An agent that does not know `interrupt`, or was not asked yet, is stopped by taking no more of its pieces."""

    def __init__(self) -> None:
        self.running: dict[int, Performance] = {}  # by the agent's id(): it may not be hashable

    def interrupt(self, agent: Any) -> Any:
        performance = self.running.get(id(agent))
        if performance and (performance.waits or not callable(getattr(agent, "interrupt", None))):
            performance.stop()
            return None
        return super().interrupt(agent)


@dataclass(frozen=True, slots=True)
class Wanted:
    """How a turn for a message is asked for."""

    wait: float
    hop: bool = False  #: another replica passed the message on
    affinity: bool = False
    place: bool = False
    avoid: Collection[str] = ()
    delivery: str | None = None


class Distant:
    """A turn that runs on another replica for a client of ours."""

    def __init__(self, worker: AsyncWorker, session: str, fence: int) -> None:
        self._worker, self._session, self._fence = worker, session, fence
        self._asking: asyncio.Task[bool] | None = None

    def interrupt(self) -> None:
        self._asking = self._asking or asyncio.create_task(self._worker.interrupt(self._session, self._fence))


class Gateway:
    """One replica. `worker_settings` are those of an AsyncWorker."""

    def __init__(self, build: Build, settings: GatewaySettings, **worker_settings: Any) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self._lifecycle = Stopping()
        self.worker = AsyncWorker(build, lifecycle=self._lifecycle, **worker_settings)
        self._open: set[asyncio.Task[None]] = set()
        self._turns: set[AsyncTurn | Distant] = set()

    async def __aenter__(self) -> Self:
        self._threads = ThreadPoolExecutor(self.settings.run_threads, "greenroom-run")
        await self.worker.start()
        self._neighbours = Neighbours(self.worker.id, self.settings.token, self.settings.hop_for)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.worker.close()
        await self._neighbours.close()
        self._threads.shutdown(wait=False)

    @property
    def busy(self) -> int:
        """How many messages are being answered, or wait."""
        return len(self._open)

    # -- messages

    def take(self, message: Message, hop: Hop | None = None) -> Exchange:
        """Have a message answered. It goes its way whether or not its client waits."""
        exchange = Exchange()
        task = asyncio.create_task(self._take(message, exchange, hop))
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        if self.settings.on_disconnect == "interrupt":
            exchange.on_leave = task.cancel  # while it waits in line; a turn that runs sets its own
        return exchange

    async def _take(self, message: Message, exchange: Exchange, hop: Hop | None) -> None:
        try:
            try:
                answer = await self._there_or_here(message, exchange, hop)
                self.counts["forwarded" if answer["worker"] != self.worker.id else "answered"] += 1
                exchange.close(answer)
            except MessageAnswered as before:
                self._replay(message, before.answer, exchange)
        except asyncio.CancelledError:
            exchange.close(problem_of(Interrupted()))
            raise
        except BaseException as error:  # a builder that calls sys.exit() ends no replica
            problem = problem_of(error)
            self.counts[problem.kind] += 1
            if problem.kind in ("agent-failed", "build-failed", "internal"):  # which the client is not told all about
                logger.error("a turn on %r: %s", message.session, problem, exc_info=error.__cause__ or error)
            exchange.close(problem)

    async def _there_or_here(self, message: Message, exchange: Exchange, hop: Hop | None) -> dict[str, Any]:
        """A turn where the agent is, or where the session is to go; here if that is here, or nothing is heard of it."""
        wait = self.settings.wait
        if hop:
            exchange.interrupted = hop.interrupted
            wanted = Wanted(min(wait, hop.wait), hop=True, affinity=True, delivery=hop.delivery)
            return await self._turn(message, exchange, wanted)
        until, delivery = time.monotonic() + wait, None
        stay, tries = not self.settings.affinity, PLACES
        while True:
            tries -= 1
            left, avoid = max(0.0, until - time.monotonic()), self._neighbours.avoided()
            try:
                wanted = Wanted(left, affinity=not stay, place=not stay, avoid=avoid, delivery=delivery)
                return await self._turn(message, exchange, wanted)
            except WorkerDraining:
                if not stay or not self.settings.affinity or tries <= 0 or exchange.pieces:
                    raise
                stay = False  # it was told to go just now
            except SessionElsewhere as elsewhere:
                if self._neighbours.reachable(elsewhere):
                    named = delivery or elsewhere.delivery
                    left = max(0.0, until - time.monotonic())
                    answer = await self._forward(message, elsewhere, named, left, exchange)
                    if not isinstance(answer, Untaken):
                        return answer
                    if not answer.never_ran:
                        delivery = named
                stay = not self.worker.draining or tries <= 0 or bool(exchange.pieces)

    async def _forward(
        self, message: Message, to: SessionElsewhere, delivery: str, wait: float, exchange: Exchange
    ) -> dict[str, Any] | Untaken:
        distant: list[Distant] = []

        def began(fence: int) -> None:
            distant.append(Distant(self.worker, message.session, fence))
            self._turns.add(distant[0])
            if exchange.on_leave:
                exchange.on_leave = distant[0].interrupt

        try:
            return await self._neighbours.forward(message, to, delivery, wait, exchange, began)
        finally:
            self._turns.difference_update(distant)

    async def _turn(self, message: Message, exchange: Exchange, wanted: Wanted) -> dict[str, Any]:
        """A turn now, or when those before it are over; what it does with one that runs is `on_busy`."""
        if message.on_busy == "reject" or (message.on_busy == "interrupt" and not exchange.interrupted):
            try:
                return await self._perform(message, exchange, replace(wanted, wait=0.0))
            except SessionBusy as busy:
                if busy.why != "repeat":  # its own turn is not in its way
                    if message.on_busy == "reject":
                        raise
                    if busy.fence:  # only the turn that it meets when it comes, and none that waited before it
                        exchange.interrupted = True
                        await self.worker.interrupt(message.session, busy.fence)
        while True:
            try:
                return await self._perform(message, exchange, wanted)
            except SessionBusy as busy:
                if busy.why != "repeat":  # its own turn is waited for as long as it takes
                    raise
                wanted = replace(wanted, wait=self.settings.wait)

    async def _perform(self, message: Message, exchange: Exchange, wanted: Wanted) -> dict[str, Any]:
        turn = self.worker.turn(
            message.session,
            message.config,
            wait=wanted.wait,
            affinity=wanted.affinity,
            place=wanted.place,
            avoid=wanted.avoid,
            line=self.settings.line,
            message=message.key,
            delivery=wanted.delivery,
        )
        async with turn:
            if exchange.pieces:  # of a turn elsewhere, which Redis has forgotten: part of it is said already
                raise LeaseLost("the turn that this message had is gone without an answer")
            await self._run(turn, message, exchange, wanted)
            answer = {
                "reply": "".join(exchange.pieces),
                "session": message.session,
                "worker": self.worker.id,
                "fence": turn.fence,
                "fresh": turn.fresh,
                "forwarded": wanted.hop,
            }
            turn.answer = json.dumps([message.digest, answer])
        return answer

    def _replay(self, message: Message, kept: str, exchange: Exchange) -> None:
        """The message has had its turn."""
        if not kept:
            outcome = Problem("answered", "the message was answered before, and its answer was too long to be kept")
        else:
            digest, answer = json.loads(kept)
            if digest == message.digest:
                self.counts["repeated"] += 1
                exchange.replayed = message.key is not None  # else it is the one that was passed on
                exchange.complete(answer)
                return
            outcome = Problem("key-reused", "another message was sent with this Idempotency-Key")
        self.counts[outcome.kind] += 1
        exchange.close(outcome)

    async def _run(self, turn: AsyncTurn, message: Message, exchange: Exchange, wanted: Wanted) -> None:
        agent = turn.agent
        if not callable(getattr(agent, "run", None)):
            turn.evict_after()
            raise Problem("build-failed", f"the builder gave a {type(agent).__name__}, which has no run(message)")
        if id(agent) in self._lifecycle.running:
            raise Problem("build-failed", "the builder gave two sessions one agent; each needs one of its own")
        limit = self.settings.reply_limit
        performance = self._lifecycle.running[id(agent)] = Performance(exchange.say, self._threads, limit)
        if wanted.hop:
            exchange.begin(turn.fence)
            exchange.on_leave = None  # not the client has gone: of that one the other replica knows
        elif exchange.on_leave:
            exchange.on_leave = turn.interrupt
        self._turns.add(turn)
        offered = {"session": turn.session, "fence": turn.fence, "fresh": turn.fresh, "config": message.config}
        try:
            await performance.run(agent, message.text, offered)
        finally:
            del self._lifecycle.running[id(agent)]
            self._turns.discard(turn)

    async def reset(self, session: str) -> bool:
        """The session is over, wherever its agent is. Whether there was one."""
        return await self.worker.evict(session, mode="hard")

    # -- coming and going

    async def ready(self) -> str:
        """Why no message should be sent here; '' when there is no reason."""
        if self.worker.draining:
            return "draining"
        try:
            async with asyncio.timeout(1.0):
                return "" if await self.worker.known() else "unknown to Redis"
        except (GreenroomError, TimeoutError):
            return "Redis cannot be reached"

    async def drain(self, until: float) -> None:
        """Take no new sessions, and answer the messages that are here. `until`: the time, on the monotonic clock, from
        which what still runs is asked to stop."""
        with contextlib.suppress(GreenroomError):
            await self.worker.drain()
        if self._open:
            logger.info("draining: %d messages are being answered", len(self._open))
            _, late = await asyncio.wait(self._open, timeout=max(0.0, until - time.monotonic()))
            if late:
                logger.warning("%d messages are still being answered after %g s", len(late), self.settings.drain_for)
                self.hurry()

    def hurry(self) -> None:
        """Ask the turns that run to stop."""
        for turn in self._turns:
            turn.interrupt()

    def metrics(self) -> str:
        """Numbers in Prometheus's text format."""
        lines = [
            "# HELP greenroom_messages_total Messages by what became of them.",
            "# TYPE greenroom_messages_total counter",
            *(f'greenroom_messages_total{{outcome="{kind}"}} {count}' for kind, count in sorted(self.counts.items())),
            "# HELP greenroom_messages_open Messages that are being answered, or wait.",
            "# TYPE greenroom_messages_open gauge",
            f"greenroom_messages_open {self.busy}",
            "# HELP greenroom_resident_agents Agents held here.",
            "# TYPE greenroom_resident_agents gauge",
            f"greenroom_resident_agents {len(self.worker.resident)}",
        ]
        return "\n".join(lines) + "\n"
