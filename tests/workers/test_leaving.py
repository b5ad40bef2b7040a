"""Leaving the room: turns end, copies are released, the worker is deregistered; SIGTERM does the same."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from support import wait_until
from support.plain import Agent

from coordinator import Coordinator, WorkerDraining
from coordinator import operations as ops
from coordinator.errors import WorkerNotRunning
from coordinator.private_redis import PrivateRedis
from workers import AsyncWorker, Lifecycle, Worker
from workers.signals import DrainOnTerminate

Start = Callable[..., Worker]


def test_leaving_drains(source: Any, room: str, look: Coordinator) -> None:
    agents: list[Agent] = []

    def build(request: Any) -> Agent:
        agents.append(Agent(request))
        return agents[-1]

    worker = Worker(build, redis=source, room=room, drain_for=10)
    worker.start()
    turn = worker.turn("running").__enter__()
    with worker.turn("idle"):
        pass
    leaving = threading.Thread(target=worker.close)
    leaving.start()
    wait_until(lambda: look.workers()[0].state == "draining")
    assert agents[0].released == 0, "its turn still runs"
    turn.__exit__(None, None, None)
    leaving.join(10)
    assert not leaving.is_alive()
    assert [agent.released for agent in agents] == [1, 1]
    assert look.workers() == look.sessions() == []
    assert look.counters()["evictions:drain"] == 2
    assert [event.event for event in look.events()][-1] == "gone"
    worker.close()


def test_draining_is_not_leaving(start: Start, source: Any, room: str, look: Coordinator) -> None:
    worker, other = start(), start()
    with worker.turn("running"):
        with worker.turn("idle"):
            pass
        assert not worker.draining
        worker.drain()
        assert worker.draining
        with pytest.raises(WorkerDraining), worker.turn("new"):
            pass
        wait_until(lambda: [one.session for one in look.sessions()] == ["running"])
    assert worker.known()
    assert {one.worker: one.state for one in look.workers()} == {worker.id: "draining", other.id: "up"}
    with other.turn("running") as turn:
        assert turn.fresh
    worker.close()
    with pytest.raises(WorkerNotRunning):
        worker.drain()
    assert worker.id not in [one.worker for one in look.workers()]


def test_who_sees_that_a_worker_drains_can_rely_on_it(
    start: Start, look: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, seen = start(), list[bool]()
    tell = ops.drain

    async def slowly(*arguments: Any) -> bool:
        seen.append(worker.draining)
        return await tell(*arguments)

    monkeypatch.setattr(ops, "drain", slowly)
    worker.drain()
    assert (seen, worker.draining) == ([False], True)
    assert [one.state for one in look.workers()] == ["draining"]


async def test_draining_an_async_worker(source: Any, room: str, look: Coordinator) -> None:
    async with AsyncWorker(Agent, redis=source, room=room) as worker:
        assert await worker.known()
        await worker.drain()
        assert [one.state for one in look.workers()] == ["draining"]
        with pytest.raises(WorkerDraining):
            async with worker.turn("new"):
                pass
    with pytest.raises(WorkerNotRunning):
        await worker.drain()


def test_a_turn_asks_its_own_agent_to_stop(start: Start) -> None:
    worker = start()
    with worker.turn("s") as turn:
        turn.interrupt()
        wait_until(lambda: turn.agent.interrupted)
    turn.interrupt()


def test_leaving_does_not_wait_for_ever(source: Any, room: str, look: Coordinator, caplog: Any) -> None:
    worker = Worker(Agent, redis=source, room=room, drain_for=0.2, lease=1.0)
    worker.start()
    turn = worker.turn("s").__enter__()
    leaving = threading.Thread(target=worker.close)
    leaving.start()
    leaving.join(20)
    assert "leaving with 1 turns open" in caplog.text
    assert turn.agent.released == 0, "it is never torn down mid-turn"


async def test_an_async_worker_leaves_while_its_loop_goes_on(source: Any, room: str, look: Coordinator) -> None:
    async with AsyncWorker(Agent, redis=source, room=room, drain_for=5) as worker, worker.turn("s"):
        pass
    assert look.workers() == []
    await AsyncWorker(Agent, redis=source, room=room).close()


@pytest.mark.parametrize("backend", ["real"], indirect=True)
def test_leaving_goes_on_without_redis(room: str, backend: str, caplog: Any) -> None:
    with PrivateRedis() as server:
        worker = Worker(Agent, redis=server.url, room=room, retry_for=0.2, lease=3)
        with worker:
            with worker.turn("s") as turn:
                agent = turn.agent
            server.kill()
        assert agent.released == 1
    assert "could not deregister" in caplog.text


_SYNC = """
import sys, time
from workers import Worker
class Agent:
    def release_clients(self): print("released", flush=True)
with Worker(lambda request: Agent(), redis=sys.argv[1], room=sys.argv[2], drain_for=20) as worker:
    with worker.turn("idle"): pass
    with worker.turn("busy"):
        print("mid-turn", flush=True)
        time.sleep(1.0)
        print("turn over", flush=True)
    time.sleep(60)
    print("never", flush=True)
"""
_ASYNC = """
import asyncio, sys
from workers import AsyncWorker
class Agent:
    async def release_clients(self): print("released", flush=True)
async def main():
    async with AsyncWorker(lambda request: Agent(), redis=sys.argv[1], room=sys.argv[2], drain_for=20) as worker:
        async with worker.turn("idle"): pass
        async with worker.turn("busy"):
            print("mid-turn", flush=True)
            await asyncio.sleep(1.0)
            print("turn over", flush=True)
        await asyncio.sleep(60)
        print("never", flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("backend", ["real"], indirect=True)
@pytest.mark.parametrize("program", [_SYNC, _ASYNC], ids=["sync", "async"])
def test_sigterm_drains_and_exits_with_zero(program: str, server: PrivateRedis, room: str, look: Coordinator) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", program, server.url, room], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout
    assert process.stdout.readline() == "mid-turn\n"
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert (sorted(out.split()), process.returncode) == (sorted(["released", "turn", "over", "released"]), 0), err
    assert out.endswith("turn over\nreleased\n"), "the busy one goes when its turn is over"
    assert look.workers() == look.sessions() == []


def test_somebody_else_s_handler_is_left_alone() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        mine = lambda *_: None  # noqa: E731
        signal.signal(signal.SIGTERM, mine)
        guard = DrainOnTerminate(lambda: None)
        guard.install()
        assert signal.getsignal(signal.SIGTERM) is mine
        guard.remove()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        guard.install()
        assert signal.getsignal(signal.SIGTERM) == guard._on_signal
        guard.remove()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_hard_close_goes_before_the_next_build_here(start: Start, look: Coordinator, client: redis.Redis) -> None:
    """H3: a release never takes down its successor. The close tears down what belongs to the session id."""
    story: list[str] = []
    go = threading.Event()

    class Slow(Lifecycle):
        def close(self, agent: Any) -> None:
            go.wait(10)
            story.append("closed")

    def build(request: Any) -> Agent:
        story.append("built")
        return Agent(request)

    worker = start(build, lifecycle=Slow())
    with worker.turn("s"):
        pass
    assert worker.evict("s", mode="hard")
    with worker.turn("other"):
        assert story == ["built", "built"], "no other session waits"
    threading.Timer(0.3, go.set).start()
    with worker.turn("s"):
        assert story == ["built", "built", "closed", "built"]


def test_a_reset_whose_message_is_late_is_still_a_hard_close(
    start: Start, look: Coordinator, client: redis.Redis
) -> None:
    worker = start(reconcile_every=3600.0)
    with worker.turn("s") as turn:
        first = turn.agent
    worker._engine.on_message = lambda message: None  # type: ignore[method-assign] # the message never comes
    assert look.evict("s", mode="hard")
    with worker.turn("s") as turn:
        assert turn.fresh
        assert (first.closed, first.released) == (1, 0)
