"""A turn from begin to end: what it costs, and what is left when something goes wrong in it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis
from support import wait_until
from support.plain import Agent

from coordinator import (
    BuildFailed,
    Coordinator,
    CoordinatorUnavailable,
    InvalidName,
    LeaseLost,
    Limits,
    SessionBusy,
    WorkerDraining,
)
from coordinator.link import SyncLink
from workers import AsyncWorker, Lifecycle, Worker

Start = Callable[..., Worker]


def test_a_warm_turn_is_two_round_trips(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = start(lease=30.0)
    with worker.turn("s"):
        pass
    sent: list[str] = []
    send = SyncLink._send

    async def counted(self: SyncLink, *command: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            sent.append(command[0])
        return await send(self, *command)

    monkeypatch.setattr(SyncLink, "_send", counted)
    with worker.turn("s") as turn:
        assert not turn.fresh
    assert sent == ["EVALSHA", "EVALSHA"]


def test_a_build_that_raises_leaves_the_session_free_at_once(
    start: Start, look: Coordinator, client: redis.Redis
) -> None:
    def broken(request: Any) -> Any:
        raise OSError("no sandbox")

    bad, good = start(broken), start()
    with pytest.raises(BuildFailed, match="OSError") as raised, bad.turn("s"):
        pass
    assert isinstance(raised.value.__cause__, OSError)
    assert look.session("s") is None
    assert client.zcard(f"greenroom:{{{look.settings.room}}}:leases") == 0
    with good.turn("s", wait=0) as turn:
        assert turn.fresh


def test_a_body_that_raises_ends_its_turn_and_is_what_the_caller_sees(start: Start, look: Coordinator) -> None:
    worker = start()
    with pytest.raises(KeyError, match="mine"), worker.turn("s"):
        raise KeyError("mine")
    session = look.session("s")
    assert session is not None
    assert (session.turn, session.state) == ("", "live")
    with worker.turn("s") as turn:
        assert not turn.fresh


def test_a_lost_turn_says_so_unless_its_body_raised(start: Start, client: redis.Redis, room: str) -> None:
    worker = start()
    with pytest.raises(LeaseLost), worker.turn("s") as turn:
        client.delete(f"greenroom:{{{room}}}:session:s", f"greenroom:{{{room}}}:leases")
        agent = turn.agent
    assert turn.lost
    wait_until(lambda: agent.released == 1)
    with pytest.raises(ZeroDivisionError), worker.turn("t") as turn:
        client.delete(f"greenroom:{{{room}}}:session:t", f"greenroom:{{{room}}}:leases")
        1 / 0  # noqa: B018
    assert worker.resident == []


def test_bad_input_is_refused_before_anything_is_written(start: Start, client: redis.Redis, room: str) -> None:
    worker = start()
    before = sorted(client.keys(f"greenroom:{{{room}}}:*"))
    for session in ("", "x" * 513, "a\x00b"):
        with pytest.raises(InvalidName):
            worker.turn(session)
        with pytest.raises(InvalidName):
            worker.evict(session)
        with pytest.raises(InvalidName):
            worker.interrupt(session)
    with pytest.raises(InvalidName, match="lease key"):
        worker.turn("s", lease_key="")
    for wait in (-1, float("nan"), float("inf"), "soon", True):
        with pytest.raises(ValueError, match="wait must be"):
            worker.turn("s", wait=wait)  # type: ignore[arg-type]
    for floor in (-1, 2**53, 1.5, True):
        with pytest.raises(ValueError, match="floor must be"):
            worker.turn("s", floor=floor)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown mode"):
        worker.evict("s", mode="gentle")
    with pytest.raises(ValueError, match="unknown reason"):
        worker.evict("s", reason="boredom")
    with pytest.raises(ValueError, match="cannot be signed"):
        worker.turn("s", {"runtime": {"key": object()}})
    assert sorted(client.keys(f"greenroom:{{{room}}}:*")) == before
    with worker.turn("s") as turn, pytest.raises(ValueError, match="unknown reason"):
        turn.evict_after("whim")


def test_the_agent_is_only_there_during_the_turn(start: Start) -> None:
    worker = start()
    turn = worker.turn("s")
    with pytest.raises(RuntimeError, match="not yours"):
        _ = turn.agent
    with turn:
        assert turn.agent.request.session == "s"
        assert "fence=" in repr(turn)
    with pytest.raises(RuntimeError, match="not yours"):
        _ = turn.agent
    with pytest.raises(RuntimeError, match="no lease to move"):
        turn.rebind("k")


def test_a_worker_must_be_started_here_and_not_be_closed(source: Any, room: str) -> None:
    worker = Worker(Agent, redis=source, room=room)
    with pytest.raises(RuntimeError, match="not started"):
        worker.turn("s")
    worker.close()
    with worker:
        reads, writes = os.pipe()
        if os.fork() == 0:  # pragma: no cover - the child only tells what happened to it
            try:
                worker.turn("s")
            except RuntimeError as error:
                os.write(writes, str(error).encode())
            os._exit(0)
        os.close(writes)
        with os.fdopen(reads, "rb") as told:
            assert b"make it after fork" in told.read()
        os.wait()
    with pytest.raises(RuntimeError, match="has left the room"):
        worker.turn("s")
    worker.close()


def test_no_turn_waits_for_the_release_of_another_agent(start: Start) -> None:
    gate = threading.Event()

    class Slow(Lifecycle):
        def release(self, agent: Any) -> None:
            gate.wait(20)

    worker = start(lifecycle=Slow(), limits=Limits(worker=1), release_threads=1)
    for number in range(6):
        with worker.turn(f"s{number}"):
            pass
    assert worker.resident[-1:] == ["s5"]
    gate.set()


def test_a_turn_that_nobody_has_hold_of_ends(start: Start, look: Coordinator) -> None:
    """H9: a live process is not a live owner."""
    worker, other = start(lease=1.0), start(lease=1.0)
    turn = worker.turn("s").__enter__()
    agent = turn.agent
    gone = weakref.ref(turn)
    del turn
    gc.collect()
    assert gone() is None
    with other.turn("s", wait=10) as second:
        assert second.fresh
    wait_until(lambda: agent.released == 1)


def test_a_snapshot_comes_back_on_another_worker(start: Start, client: redis.Redis, room: str) -> None:
    class Warm(Lifecycle):
        def snapshot(self, agent: Any) -> Any:
            return {"prompt": agent.request.snapshot["prompt"] if agent.request.snapshot else "frozen", "n": b"\x00"}

    first, second = start(lifecycle=Warm()), start(lifecycle=Warm())
    with first.turn("s", {"model": "m"}) as turn:
        assert turn.agent.request.snapshot is None
    with second.turn("s", {"model": "m"}) as turn:
        assert turn.agent.request.snapshot == {"prompt": "frozen", "n": b"\x00"}
    with second.turn("s", {"model": "other"}) as turn:
        assert turn.agent.request.snapshot is None
    client.hset(f"greenroom:{{{room}}}:snapshot:s", "data", b"\xc1")
    with first.turn("s", {"model": "other"}) as turn:
        assert turn.agent.request.snapshot is None
    first.evict("s", mode="hard")
    assert not client.exists(f"greenroom:{{{room}}}:snapshot:s")


@pytest.mark.parametrize("bad", [object(), "x" * 5000])
def test_a_snapshot_that_cannot_be_kept_does_not_harm_the_turn(start: Start, bad: Any, caplog: Any) -> None:
    class Bad(Lifecycle):
        def snapshot(self, agent: Any) -> Any:
            return bad

        def last_activity(self, agent: Any) -> float:
            raise RuntimeError("no clock")

    worker = start(lifecycle=Bad(), snapshot_limit=4096)
    with worker.turn("s"):
        pass
    assert "no snapshot of 's'" in caplog.text
    assert "no activity timestamp of 's'" in caplog.text
    with worker.turn("s") as turn:
        assert not turn.fresh


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_a_forged_eviction_costs_nothing(start: Start, client: redis.Redis, room: str, mode: str) -> None:
    """Right worker, right session, right generation: Redis knows nothing of it, and Redis decides."""
    worker = start()
    channel = f"greenroom:{{{room}}}:evict:{worker.id}"
    heard = threading.Event()
    worker._engine.line.enter("behind", heard.set)

    def forge(generation: int) -> None:
        heard.clear()
        client.publish(channel, json.dumps({"v": 1, "session": "s", "generation": str(generation), "mode": mode}))
        client.publish(channel, b"rubbish")
        client.publish(channel, '{"v":1,"mode":"wake","turn":"behind"}')
        assert heard.wait(10)

    with worker.turn("s") as turn:
        generation, agent = turn.fence, turn.agent
        forge(generation)
    forge(generation)
    with worker.turn("s") as turn:
        assert turn.agent is agent
    assert (agent.released, agent.closed) == (0, 0)


def test_lease_keys_exclude_each_other_and_can_be_rebound(start: Start, look: Coordinator) -> None:
    one, two = start(), start()
    with one.turn("a", lease_key="conversation") as turn:
        for session, key in (("b", "conversation"), ("conversation", None), ("a", "other"), ("a", None)):
            with pytest.raises(SessionBusy), two.turn(session, lease_key=key, wait=0):
                pass
        turn.rebind("rotated")
        turn.rebind("rotated")
        with two.turn("b", lease_key="conversation", wait=0), pytest.raises(SessionBusy):
            turn.rebind("conversation")
        with pytest.raises(SessionBusy), two.turn("b", lease_key="rotated", wait=0):
            pass
        with pytest.raises(InvalidName):
            turn.rebind("")
        turn.rebind("a")
        with two.turn("b", lease_key="rotated", wait=0):
            pass
    with two.turn("c", lease_key="a", wait=0):
        pass


def test_a_draining_worker_takes_no_new_sessions(start: Start, look: Coordinator) -> None:
    worker, other = start(lease=1.0), start()
    with worker.turn("mine") as turn:
        agent = turn.agent
        assert look.drain(worker.id)
        with pytest.raises(WorkerDraining), worker.turn("new"):
            pass
    wait_until(lambda: agent.released == 1, what="idle copies of a draining worker go")
    assert not look.drain("nobody")
    with other.turn("new"):
        pass


def test_redis_away_is_not_a_busy_session(room: str) -> None:
    """H10, and where Redis cannot be reached at the start."""
    with pytest.raises(CoordinatorUnavailable) as raised:
        Worker(Agent, redis="redis://127.0.0.1:1", room=room, retry_for=0.2).start()
    assert not isinstance(raised.value, SessionBusy)


# -- asyncio


class Loop:
    """Async workers for one test."""

    def __init__(self, source: Any, room: str) -> None:
        self.source, self.room = source, room

    def worker(self, build: Any = Agent, **settings: Any) -> AsyncWorker:
        settings = {"lease": 3.0, "drain_for": 2.0, **settings}
        return AsyncWorker(build, redis=self.source, room=self.room, **settings)


@pytest.fixture
def loop(source: Any, room: str) -> Loop:
    return Loop(source, room)


async def test_cancellation_at_any_await_leaves_no_lease(loop: Loop, client: redis.Redis, room: str) -> None:
    prefix = f"greenroom:{{{room}}}:"
    phases: Counter[str] = Counter()
    agents: list[Agent] = []

    async def build(request: Any) -> Agent:
        phases["building"] += 1
        for _ in range(3):
            await asyncio.sleep(0)
        agents.append(Agent(request))
        return agents[-1]

    async def turn(worker: AsyncWorker, session: str) -> None:
        phases["begun"] += 1
        async with worker.turn(session) as turn:
            phases["running"] += 1
            await asyncio.sleep(0)
            turn.agent.interrupt()
        phases["ended"] += 1

    async with loop.worker(build) as worker:
        for steps in range(60):
            for session in (f"cold-{steps}", "warm"):
                task = asyncio.create_task(turn(worker, session))
                for step in range(steps):
                    await asyncio.sleep(0.0005 if step % 4 == 3 else 0)
                task.cancel()
                await asyncio.wait({task})
                assert client.zcard(prefix + "leases") == 0, f"a lease was left after {steps} steps"
                assert not client.keys(prefix + "waiter:*")
        async with worker.turn("warm"):  # the connections are in step
            pass
        records = {key.decode().removeprefix(prefix + "session:") for key in client.keys(prefix + "session:*")}
        assert records == set(worker.resident)
    assert min(phases[name] for name in ("begun", "building", "running", "ended")) > 0, phases
    wait_until(lambda: all(agent.released == 1 for agent in agents), what="every agent released once")


async def test_cancelling_a_wait_leaves_the_queue(loop: Loop, client: redis.Redis, room: str) -> None:
    async with loop.worker() as worker:
        async with worker.turn("s"):

            async def wait() -> None:
                async with worker.turn("s"):
                    pass

            task = asyncio.create_task(wait())
            while not client.exists(f"greenroom:{{{room}}}:waiting:s"):
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not client.exists(f"greenroom:{{{room}}}:waiting:s")
        async with worker.turn("s", wait=0) as turn:
            assert not turn.fresh


async def test_an_agent_that_nobody_waits_for_any_more_is_released(loop: Loop, client: redis.Redis, room: str) -> None:
    started, go = threading.Event(), threading.Event()
    agents: list[Agent] = []

    def build(request: Any) -> Agent:
        started.set()
        go.wait(10)
        agents.append(Agent(request))
        return agents[-1]

    async with loop.worker(build) as worker:

        async def turn() -> None:
            async with worker.turn("s"):
                pass

        task = asyncio.create_task(turn())
        await asyncio.to_thread(started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert client.zcard(f"greenroom:{{{room}}}:leases") == 0
        go.set()
        await asyncio.to_thread(wait_until, lambda: agents and agents[0].released == 1)
    assert worker.resident == []


async def test_an_async_builder_and_an_async_lifecycle(loop: Loop) -> None:
    done: list[str] = []
    home = asyncio.get_running_loop()

    class Async(Lifecycle):
        async def keep(self, agent: Any) -> None:
            done.append("keep")

        async def release(self, agent: Any) -> None:
            assert asyncio.get_running_loop() is home
            done.append("release")

    class Builder:
        async def _make(self, request: Any) -> Agent:
            return Agent(request)

        def __call__(self, request: Any) -> Any:
            return self._make(request)

    async with loop.worker(Builder(), lifecycle=Async()) as worker:
        async with worker.turn("s") as turn:
            assert isinstance(turn.agent, Agent)
            await turn.rebind("k")
        assert await worker.evict("s")
        assert not await worker.interrupt("s")
        assert await worker.sweep() == 0
        await asyncio.to_thread(wait_until, lambda: done == ["keep", "release"])


async def test_a_blocked_event_loop_does_not_stop_renewal(loop: Loop) -> None:
    async with loop.worker(lease=1.0) as worker, worker.turn("s") as turn:
        threading.Event().wait(2.5)  # blocks the loop for more than two leases
        assert not turn.lost


async def test_a_body_that_raises_async(loop: Loop) -> None:
    async with loop.worker() as worker:
        with pytest.raises(KeyError):
            async with worker.turn("s"):
                raise KeyError("mine")
        with pytest.raises(BuildFailed):
            async with loop.worker(lambda request: 1 / 0) as broken, broken.turn("s"):
                pass
