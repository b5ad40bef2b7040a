"""Corners that broke when the core was tried from outside, each seen red before it was mended."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from support import wait_until
from support.plain import Agent

from coordinator import (
    AlreadyStarted,
    Coordinator,
    CoordinatorUnavailable,
    GreenroomError,
    LeaseLost,
    Limits,
    SessionBusy,
    SessionElsewhere,
    WorkerExists,
    WorkerNotRunning,
)
from coordinator import operations as ops
from coordinator.answers import Ended, Granted, Maintenance
from coordinator.link import Link, SyncLink, run
from coordinator.private_redis import PrivateRedis
from coordinator.settings import Settings
from workers import AsyncWorker, Lifecycle, Worker
from workers.running import now

Start = Callable[..., Worker]


# -- G6: fencing is not behind anything else


def test_what_else_a_worker_does_delays_no_renewal(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, held = threading.Event(), threading.Event()

    async def slow(*arguments: Any, **named: Any) -> Maintenance:
        held.set()
        gate.wait(20)
        return Maintenance()

    monkeypatch.setattr(ops, "maintain", slow)
    worker = start(lease=1.5)
    with worker.turn("s") as turn:
        assert held.wait(10)
        time.sleep(3.0)
        assert not turn.lost
    gate.set()


def test_a_beat_that_hangs_delays_no_fence(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    async def slow(*arguments: Any, **named: Any) -> Any:
        gate.wait(20)
        raise CoordinatorUnavailable("too slow")

    monkeypatch.setattr(ops, "beat", slow)
    worker = start(lease=3.0)
    with pytest.raises(LeaseLost), worker.turn("s") as turn:
        began = now()
        wait_until(lambda: turn.lost, 10)
        assert now() - began < 3.0, "before it runs out in Redis"
    gate.set()


@pytest.mark.parametrize("backend", ["real"], indirect=True)
def test_a_turn_that_is_lost_never_opens(backend: str, room: str) -> None:
    """Redis hangs for most of a lease during a build: the body does not start with a turn that is lost already."""
    with PrivateRedis() as server:

        def build(request: Any) -> Agent:
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(2.4)
            os.kill(server.pid, signal.SIGCONT)
            return agents.append(Agent(request)) or agents[-1]

        agents: list[Agent] = []
        opened = []
        with Worker(build, redis=server.url, room=room, lease=3.0, release_limit=5.0) as worker:
            with pytest.raises(LeaseLost), worker.turn("s"):
                opened.append(1)
            assert not opened
            wait_until(lambda: agents[0].released == 1)
        with Coordinator(server.url, room) as look:
            assert look.sessions() == []


def test_a_turn_that_hangs_is_bounded(start: Start) -> None:
    worker, other = start(lease=1.5, turn_limit=0.4), start(lease=1.5)
    with pytest.raises(LeaseLost), worker.turn("s") as turn:
        wait_until(lambda: turn.agent.interrupted)
        with other.turn("s"):
            assert turn.lost


# -- caps and queues: the whole of the window, the whole of the line


class Room:
    """Plays many workers and sessions, without any worker."""

    def __init__(self, source: Any, room: str) -> None:
        self.link: Link = SyncLink(Settings(redis=source, room=room))
        self.turns = 0

    def join(self, worker: str) -> None:
        named: dict[str, Any] = {"epoch": "", "floor": 0, "address": "", "host": "", "pid": 1, "state": "up"}
        named["instance"] = "1"
        run(ops.register(self.link, worker, 60_000, **named))

    def begin(self, session: str, **named: Any) -> Any:
        self.turns += 1
        named = {"worker": "w", "turn": f"w/{self.turns}", "generation": 0, "lease": 60_000} | named
        return run(ops.begin(self.link, session=session, signature="x", **named))

    def hold(self, session: str, limits: Limits, end: bool = True) -> Any:
        assert isinstance(self.begin(session), Granted)
        turn = f"w/{self.turns}"
        run(ops.commit(self.link, session, turn, limits))
        return run(ops.end(self.link, session, turn, limits, stamped=True)) if end else turn


@pytest.fixture
def stage(source: Any, room: str) -> Any:
    one = Room(source, room)
    one.join("w")
    yield one
    run(one.link.disconnect())


def test_the_whole_excess_window_is_looked_at(stage: Room, client: redis.Redis) -> None:
    """The 64 oldest are mid-turn: the idle ones behind them in the window go all the same."""
    none, cap = Limits(), Limits(room=20)
    busy = [stage.hold(f"busy:{number}", none, end=False) for number in range(64)]
    for number in range(35):
        stage.hold(f"idle:{number}", none)
    stage.hold("last", cap)
    assert client.zcard(stage.link.keys.lru) == 84, "80 above the cap: 64 of them mid-turn, 16 idle"
    assert run(ops.end(stage.link, "busy:0", busy[0], cap, stamped=True)) == Ended()
    assert client.zcard(stage.link.keys.lru) == 83


def test_more_than_a_call_may_drop_is_seen_to_before_the_next_turn(start: Start, look: Coordinator) -> None:
    worker = start()
    for number in range(300):
        with worker.turn(f"s{number}"):
            pass
    worker._engine.limits = Limits(room=10)
    with worker.turn("last"):
        pass
    assert len(look.sessions()) == 10


def test_nobody_jumps_a_queue_with_many_stale_places(stage: Room, client: redis.Redis) -> None:
    for line in (64, 1200):
        session = f"s{line}"
        assert isinstance(stage.begin(session), Granted)
        running = f"w/{stage.turns}"
        first = stage.turns + 1
        for _ in range(line):
            stage.begin(session, queue=60_000)
        names = [f"{stage.link.keys.prefix}waiter:w/{first + number}" for number in range(line)]
        assert client.delete(*names) == line  # they stopped asking
        stage.begin(session, turn=f"live-{line}", queue=60_000)
        run(ops.abandon(stage.link, session, running, Limits()))
        answers = [stage.begin(session) for _ in range(3)]
        assert [answer.why for answer in answers] == ["queue"] * 3, "wait=0 never jumps"
        assert isinstance(stage.begin(session, turn=f"live-{line}", queue=60_000), Granted)


def test_a_refusal_costs_one_script_and_leaves_no_key(
    start: Start, client: redis.Redis, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = start(lease=60.0), start(lease=60.0)
    with one.turn("s"):
        pass
    turn = one.turn("busy").__enter__()
    before, called = set(client.keys(f"greenroom:{{{room}}}:*")), []
    call = Link.call

    async def counted(self: Link, name: str, *argv: Any, **named: Any) -> Any:
        called.append(name)
        return await call(self, name, *argv, **named)

    monkeypatch.setattr(Link, "call", counted)
    with pytest.raises(SessionElsewhere), two.turn("s", affinity=True):
        pass
    with pytest.raises(SessionBusy), two.turn("busy", wait=0):
        pass
    assert called == ["begin", "begin"]
    assert set(client.keys(f"greenroom:{{{room}}}:*")) == before
    turn.__exit__(None, None, None)


def test_a_turn_that_would_wait_for_itself_is_told_at_once(start: Start) -> None:
    worker = start()
    with worker.turn("s", lease_key="conversation"):
        for session in ("s", "conversation"):
            with pytest.raises(SessionBusy, match="wait for itself"), worker.turn(session, wait=60):
                pass
        with worker.turn("t"):
            pass
        outcome: list[Any] = []
        thread = threading.Thread(target=lambda: outcome.append(_wait(worker, "s")))
        thread.start()
        wait_until(lambda: worker._engine.line, what="another thread waits")
    thread.join(10)
    assert outcome == ["served"]


def _wait(worker: Worker, session: str) -> str:
    with worker.turn(session, wait=30):
        return "served"


async def test_a_task_that_would_wait_for_itself_is_told_at_once(source: Any, room: str) -> None:
    async with AsyncWorker(Agent, redis=source, room=room) as worker:

        async def other() -> str:
            async with worker.turn("s", wait=30):
                return "served"

        async with worker.turn("s"):
            with pytest.raises(SessionBusy, match="wait for itself"):
                async with worker.turn("s", wait=60):
                    pass
            task = asyncio.create_task(other())
            await asyncio.sleep(0.1)
            assert not task.done(), "a task of its own may wait"
        assert await task == "served"


# -- hooks


@pytest.mark.parametrize("cleaning_up", [0.1, 1.0], ids=["quick", "slow"])
async def test_keep_is_cancelled_before_the_release_begins(source: Any, room: str, cleaning_up: float) -> None:
    order: list[str] = []

    class Slow(Lifecycle):
        async def keep(self, agent: Any) -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(cleaning_up)
                order.append("keep ended")
                raise

        async def release(self, agent: Any) -> None:
            order.append("release")

    async with AsyncWorker(Agent, redis=source, room=room, lifecycle=Slow(), release_limit=0.3) as worker:
        async with worker.turn("s"):
            pass
        await worker.evict("s")
        async with asyncio.timeout(10):
            while len(order) < 2:
                await asyncio.sleep(0.01)
    assert order == ["keep ended", "release"]


async def test_a_loop_that_is_blocked_changes_no_order(source: Any, room: str) -> None:
    order = list[str]()

    class Quick(Lifecycle):
        async def keep(self, agent: Any) -> None:
            await asyncio.sleep(0)
            order.append("keep ended")

        async def release(self, agent: Any) -> None:
            order.append("release")

    async with AsyncWorker(Agent, redis=source, room=room, lifecycle=Quick(), release_limit=0.2) as worker:
        async with worker.turn("s"):
            pass
        await worker.evict("s")
        time.sleep(1.0)  # noqa: ASYNC251 - what an application should not do
        async with asyncio.timeout(10):
            while len(order) < 2:
                await asyncio.sleep(0.01)
    assert order == ["keep ended", "release"]


class Awaited(Lifecycle):
    async def snapshot(self, agent: Any) -> Any:
        await asyncio.sleep(0)
        return ["awaited"]


async def test_a_snapshot_may_be_async(source: Any, room: str) -> None:
    async with (
        AsyncWorker(Agent, redis=source, room=room, lifecycle=Awaited()) as one,
        AsyncWorker(Agent, redis=source, room=room) as two,
    ):
        async with one.turn("s"):
            pass
        async with two.turn("s") as turn:
            assert turn.agent.request.snapshot == ["awaited"]


def test_also_for_threads(start: Start) -> None:
    one, two = start(lifecycle=Awaited()), start()
    with one.turn("s"):
        pass
    with two.turn("s") as turn:
        assert turn.agent.request.snapshot == ["awaited"]


def test_an_end_that_redis_could_not_be_asked_about_is_not_taken_for_done(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    class Noting(Lifecycle):
        def end_session(self, session: str) -> None:
            ended.append(session)

    fate, refused = ops.fate, []

    async def refuse(*arguments: Any) -> str:
        if len(refused) < 2:
            refused.append(1)
            raise CoordinatorUnavailable("Redis is away")
        return await fate(*arguments)

    monkeypatch.setattr(ops, "fate", refuse)
    worker = start(lease=1.5, lifecycle=Noting())
    assert not worker.evict("s", "hard")
    with worker.turn("s") as turn:
        assert turn.fresh
        assert ended == ["s"], "before the new life"


def test_an_end_is_not_the_business_of_an_instance_whose_place_was_taken(stage: Room, client: redis.Redis) -> None:
    """A process that was paused wakes up: its id, and what it had to end, are another's now."""
    link = stage.link
    stage.hold("s", Limits())
    generation = int(client.hget(link.keys.session("s"), "generation") or 0)
    run(ops.evict(link, "s", "hard", "reset"))
    client.hset(link.keys.worker("w"), "instance", "the-next")
    assert run(ops.fate(link, "s", "w", "1", generation)) == "soft"
    run(ops.closed(link, "w", "1", [("s", generation)]))
    assert client.hexists(link.keys.closing, "s")
    assert run(ops.fate(link, "s", "w", "the-next", generation)) == "hard"
    run(ops.closed(link, "w", "the-next", [("s", generation)]))
    assert not client.hexists(link.keys.closing, "s")


# -- for whoever writes a gateway


async def test_a_worker_that_is_not_running_says_so(source: Any, room: str) -> None:
    worker, other = Worker(Agent, redis=source, room=room), AsyncWorker(Agent, redis=source, room=room)
    for one in (worker, other):
        with pytest.raises(WorkerNotRunning, match="not started"):
            one.turn("s")
    assert issubclass(WorkerNotRunning, GreenroomError)
    with worker, pytest.raises(AlreadyStarted):
        worker.start()
    async with other:
        with pytest.raises(AlreadyStarted):
            await other.start()
        async with other.turn("s"):
            pass
    for one in (worker, other):
        with pytest.raises(WorkerNotRunning, match="has left"):
            one.turn("s")
    with pytest.raises(AlreadyStarted):
        worker.start()


def test_a_second_live_worker_with_the_same_id_is_refused(start: Start, source: Any, room: str) -> None:
    first = start(worker="w", lease=1.5)
    second = Worker(Agent, redis=source, room=room, worker="w", lease=1.5)
    with first.turn("s") as turn:
        with pytest.raises(WorkerExists, match=f"process {os.getpid()} on "):
            second.start()
        second.close()
    assert not turn.lost
    with first.turn("s") as turn:
        assert not turn.fresh


async def test_an_async_worker_is_refused_too_and_can_be_called_off(source: Any, room: str) -> None:
    async with AsyncWorker(Agent, redis=source, room=room, worker="w", lease=1.5) as first:
        with pytest.raises(WorkerExists):
            await AsyncWorker(Agent, redis=source, room=room, worker="w", lease=1.5).start()
        starting = asyncio.create_task(AsyncWorker(Agent, redis=source, room=room, worker="w", lease=1.5).start())
        await asyncio.sleep(0.1)
        starting.cancel()
        with pytest.raises((asyncio.CancelledError, WorkerExists)):
            await starting
        async with first.turn("s"):
            pass


def test_after_a_crash_the_same_id_starts_again(start: Start, stage: Room, look: Coordinator, caplog: Any) -> None:
    about: dict[str, Any] = {"epoch": "", "floor": 0, "address": "", "host": "h", "pid": 7, "state": "up"}
    run(ops.register(stage.link, "crashed", 1500, instance="before", **about))
    began = time.monotonic()
    worker = start(worker="crashed", lease=30.0)
    assert 1.0 < time.monotonic() - began < 15, "it waits for the old heartbeat, and no longer"
    assert "s for its heartbeat to run out" in caplog.text
    with worker.turn("s"):
        assert [one.pid for one in look.workers() if one.worker == "crashed"] == [os.getpid()]


def test_a_worker_whose_place_was_taken_gives_everything_up(
    start: Start, look: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, beat = start(worker="w", lease=1.5), ops.beat

    async def unheard(link: Any, worker: str, lease: int, instance: str, *arguments: Any, **named: Any) -> Any:
        if instance == silent._engine.instance and cut:
            raise CoordinatorUnavailable("cut off")
        return await beat(link, worker, lease, instance, *arguments, **named)

    cut = [1]
    with silent.turn("idle") as turn:
        idle = turn.agent
    with pytest.raises(LeaseLost), silent.turn("s") as turn:
        monkeypatch.setattr(ops, "beat", unheard)
        wait_until(lambda: look.workers()[0].heartbeat_left < 0)
        successor = start(worker="w", lease=1.5)
        cut.clear()
        wait_until(lambda: silent._engine._displaced)
        assert turn.lost
        with pytest.raises(WorkerNotRunning, match="taken this one's id"):
            silent.turn("t")
    wait_until(lambda: idle.released == 1)
    silent.close()
    assert [one.worker for one in look.workers()] == ["w"], "who leaves takes nothing of its successor's along"
    with successor.turn("s") as turn:
        assert turn.fresh


def test_a_config_that_signs_nothing_is_refused(start: Start) -> None:
    worker = start()
    with pytest.raises(ValueError, match="none of model, runtime, toolsets, ephemeral_prompt, extra"):
        worker.turn("s", {"modle": "m-1"})
    with worker.turn("s", {}) as turn:
        empty = turn.signature
    assert worker.turn("s", None).signature == empty


@pytest.mark.parametrize("on_error", ["", "drop", None])
def test_on_error_is_one_of_two(start: Start, on_error: Any) -> None:
    with pytest.raises(ValueError, match="on_error is 'keep' or 'evict'"):
        start().turn("s", on_error=on_error)
