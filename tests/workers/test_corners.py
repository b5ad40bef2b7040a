"""Corners where something once went wrong: each is a story that a reviewer told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from support import wait_until
from support.plain import Agent
from support.proxy import Proxy

from coordinator import BuildFailed, Coordinator, LeaseLost, Limits
from coordinator import operations as ops
from coordinator.answers import Granted
from coordinator.link import run
from coordinator.private_redis import PrivateRedis
from coordinator.settings import Settings
from workers import AsyncWorker, Lifecycle, Worker
from workers.lifecycle import Lifecycle as Default
from workers.running import now
from workers.turns import BuildRequest

Start = Callable[..., Worker]


def test_two_that_wait_for_two_names_never_block_each_other(look: Coordinator, client: redis.Redis, room: str) -> None:
    """A place that lapses in one line lapses in all: else two waiters are each first in one and second in the other."""
    link = look._flows._link
    run(ops.register(link, "w", 60_000, epoch="", floor=0, address="", host="", pid=1, state="up", instance="1"))

    def ask(session: str, turn: str, key: str = "") -> Any:
        named = {"worker": "w", "signature": "x", "generation": 0, "lease": 60_000, "queue": 60_000}
        return run(ops.begin(link, session=session, turn=turn, key=key, **named))  # type: ignore[arg-type]

    assert isinstance(ask("K", "first"), Granted)
    ask("S", "a", "K"), ask("S", "b", "K")
    client.delete(f"greenroom:{{{room}}}:waiter:a")  # a stalls past its place
    ask("S", "b", "K"), ask("S", "a", "K")
    run(ops.abandon(link, "K", "first", Limits()))
    answers = [ask("S", "b", "K"), ask("S", "a", "K")]
    assert isinstance(answers[0], Granted), answers


class Remembering(Agent):
    """Its snapshot is its history; too much of it cannot be kept."""

    def __init__(self, request: BuildRequest) -> None:
        super().__init__(request)
        self.history: list[str] | None = list(request.snapshot or [])

    def snapshot(self) -> list[str] | None:
        return self.history


def test_an_old_snapshot_is_never_handed_out_as_the_new_one(start: Start) -> None:
    one, two = (start(Remembering, snapshot_limit=100) for _ in range(2))
    with one.turn("s") as turn:
        turn.agent.history = ["short"]
    with one.turn("s") as turn:
        turn.agent.history = ["x" * 200]
    with two.turn("s") as turn:
        assert turn.agent.history == [], "cold, rather than a history that has moved on"
        turn.agent.history = ["again"]
    with one.turn("s") as turn:
        assert turn.agent.history == ["again"]
        turn.agent.history = None
    with two.turn("s") as turn:
        assert turn.agent.history == []


def test_a_snapshot_lives_as_long_as_its_session_is_used(start: Start, client: redis.Redis, room: str) -> None:
    worker = start(Remembering, snapshot_ttl=100.0)
    key = f"greenroom:{{{room}}}:snapshot:s"
    with worker.turn("s") as turn:
        turn.agent.history = ["same"]
    client.pexpire(key, 10_000)
    with worker.turn("s"):
        pass
    assert client.pttl(key) <= 10_000, "nothing changed, nothing is sent"
    worker._engine.copies._newest["s"].saved_at -= 60.0
    with worker.turn("s"):
        pass
    assert client.pttl(key) > 50_000


def test_after_a_loss_of_state_the_snapshot_is_sent_again(start: Start, client: redis.Redis, room: str) -> None:
    worker = start(Remembering, lease=1.5)
    with worker.turn("s") as turn:
        turn.agent.history = ["kept"]
    client.delete(*client.keys(f"greenroom:{{{room}}}:*"))
    wait_until(lambda: client.exists(f"greenroom:{{{room}}}:session:s"), what="the copy is re-asserted")
    with worker.turn("s", wait=10):
        pass
    assert client.exists(f"greenroom:{{{room}}}:snapshot:s")


async def test_a_second_cancel_leaks_nothing(source: Any, room: str, client: redis.Redis, monkeypatch: Any) -> None:
    agents: list[Agent] = []

    async def build(request: Any) -> Agent:
        agents.append(Agent(request))
        return agents[-1]

    commit, committing = ops.commit, asyncio.Event()

    async def slow(*arguments: Any, **named: Any) -> Any:
        committing.set()
        await asyncio.sleep(30)
        return await commit(*arguments, **named)

    monkeypatch.setattr(ops, "commit", slow)
    async with AsyncWorker(build, redis=source, room=room, lease=3, drain_for=20) as worker:

        async def turn() -> None:
            async with worker.turn("s"):
                pass

        task = asyncio.create_task(turn())
        await committing.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        await asyncio.to_thread(wait_until, lambda: agents[0].released == 1)
        assert not worker._engine.running._unfinished
        assert client.zcard(f"greenroom:{{{room}}}:leases") == 0


@pytest.mark.parametrize("backend", ["real"], indirect=True)
def test_a_lost_turn_s_agent_is_not_adopted_by_an_empty_redis(room: str, backend: str) -> None:
    with PrivateRedis() as server, Worker(Agent, redis=server.url, room=room, lease=1.5, retry_for=0.2) as worker:
        with pytest.raises(LeaseLost), worker.turn("s") as turn:
            agent = turn.agent
            server.kill()
            wait_until(lambda: turn.lost)
        server.start()
        with worker.turn("s", wait=20) as turn:
            assert turn.agent is not agent
        wait_until(lambda: agent.released == 1)


@pytest.mark.parametrize("backend", ["real"], indirect=True)
def test_a_short_lease_is_given_up_in_time_whatever_is_retried(server: PrivateRedis, start: Start, room: str) -> None:
    with (
        Proxy(server.port) as proxy,
        Worker(Agent, redis=proxy.url, room=room, lease=2.0, retry_for=30.0, drain_for=1.0) as worker,
    ):
        turn = worker.turn("s").__enter__()
        renewed = turn._renewed
        wait_until(lambda: turn._renewed > renewed)
        proxy.cut()
        cut_at = now()
        wait_until(lambda: turn.lost)
        assert now() - cut_at < 2.0
        proxy.mend()
        with pytest.raises(LeaseLost):
            turn.__exit__(None, None, None)


class Ends(Lifecycle):
    """Writes down when sessions end."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.go = threading.Event()

    def end_session(self, session: str) -> None:
        self.go.wait(10)
        self.story.append(f"{session} ended")

    def close(self, agent: Any) -> None:
        self.go.wait(10)


def test_the_end_of_a_session_goes_before_its_next_life_here(start: Start) -> None:
    ends = Ends()

    def build(request: Any) -> Agent:
        ends.story.append("built")
        return Agent(request)

    worker = start(build, lifecycle=ends)
    assert not worker.evict("s", mode="hard")
    threading.Timer(0.2, ends.go.set).start()
    with worker.turn("s"):
        assert ends.story == ["s ended", "built"]


async def test_closes_that_hang_stall_nobody_else(source: Any, room: str) -> None:
    ends = Ends()
    async with AsyncWorker(Agent, redis=source, room=room, lifecycle=ends, lease=10, drain_for=20) as worker:

        async def once(session: str) -> None:
            async with worker.turn(session):
                pass

        for number in range(40):
            await once(f"s{number}")
            await worker.evict(f"s{number}", mode="hard")
        stalled = [asyncio.create_task(once(f"s{number}")) for number in range(40)]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            await once("other")
        assert not any(task.done() for task in stalled)
        ends.go.set()
        await asyncio.gather(*stalled)


def test_a_turn_that_outlives_its_worker_lets_its_agent_go(source: Any, room: str, look: Coordinator) -> None:
    worker = Worker(Agent, redis=source, room=room, lease=5.0, drain_for=0.1)
    worker.start()
    turn = worker.turn("s").__enter__()
    agent = turn.agent
    worker.close()
    turn.__exit__(None, None, None)
    wait_until(lambda: agent.released == 1)
    assert look.session("s") is None
    assert worker.resident == []


def test_an_interrupt_that_comes_late_does_not_hit_the_next_turn(start: Start) -> None:
    hit: list[int] = []
    gates = [threading.Event(), threading.Event()]

    class Slow(Lifecycle):
        def interrupt(self, agent: Any) -> None:
            hit.append(1)
            gates[0].wait(10)

    worker = start(lifecycle=Slow())
    blockers = [worker.turn(f"b{number}").__enter__() for number in range(2)]
    for number in range(2):
        worker.interrupt(f"b{number}")
    wait_until(lambda: len(hit) == 2, what="both threads for interrupts are taken")
    with worker.turn("s"):
        worker.interrupt("s")
        wait_until(lambda: worker._engine.departures.interrupts._queue.qsize() == 1)
    with worker.turn("s") as turn:
        gates[0].set()
        assert worker._engine.departures.interrupts.finish(10)
        assert len(hit) == 2, "the turn it was meant for is over"
        assert not turn.lost
    for blocker in blockers:
        blocker.__exit__(None, None, None)


def test_secrets_are_in_no_repr_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """G8."""
    assert "hunter2" not in repr(Settings(redis="redis://:hunter2@host", signature_key="hunter2"))
    assert "hunter2" not in repr(BuildRequest("s", {"runtime": {"api_key": "hunter2"}}, "sig", ["hunter2"], 1))
    for url in ("redis://:hun/ter2@host", "redis://:hunter2@host?x=hunter2", "redis://user:hunter2@host:ter2"):
        with pytest.raises(ValueError, match="the Redis URL cannot be used") as raised:
            Coordinator(url)
        error: BaseException | None = raised.value
        while error is not None:
            assert "ter2" not in str(error)
            error = error.__cause__
        assert raised.value.__suppress_context__


def test_a_worker_that_could_not_start_can_be_closed(room: str) -> None:
    worker = Worker(Agent, redis="redis://127.0.0.1:1", room=room, retry_for=0.1, lease=1.0)
    with pytest.raises(Exception, match="cannot be reached"):
        worker.start()
    worker.close()


async def test_a_start_that_is_cancelled_leaves_no_worker(source: Any, room: str, look: Coordinator) -> None:
    worker = AsyncWorker(Agent, redis=source, room=room, lease=3.0)
    task = asyncio.create_task(worker.start())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert look.workers() == []


_FORGETFUL = """
import sys
from workers import Worker
class Agent:
    def release_clients(self): print("released", flush=True)
worker = Worker(lambda request: Agent(), redis=sys.argv[1], room=sys.argv[2])
worker.start()
with worker.turn("s"): pass
"""


@pytest.mark.parametrize("backend", ["real"], indirect=True)
def test_a_program_that_forgets_to_close_drains_at_its_exit(server: PrivateRedis, room: str, look: Coordinator) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORGETFUL, server.url, room], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.returncode) == ("released\n", 0), done.stderr
    assert look.workers() == look.sessions() == []


async def test_a_hard_close_awaits_both_of_its_halves_whatever_fails() -> None:
    story: list[str] = []

    class Async:
        async def shutdown_memory_provider(self) -> None:
            story.append("memory")
            raise OSError("gone")

        async def close(self) -> None:
            story.append("close")

    with pytest.raises(OSError, match="gone"):
        await Default().close(Async())
    assert story == ["memory", "close"]

    class Plain:
        def shutdown_memory_provider(self) -> None:
            raise OSError("gone")

        def close(self) -> None:
            story.append("plain close")

    with pytest.raises(OSError, match="gone"):
        Default().close(Plain())
    assert story[-1] == "plain close"


class Exits(Lifecycle):
    """Everything that is asked of it calls sys.exit()."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def _exit(self, what: str) -> Any:
        self.asked.append(what)
        sys.exit(what)

    async def release(self, agent: Any) -> None:
        self._exit("release")

    async def snapshot(self, agent: Any) -> None:
        self._exit("snapshot")

    def last_activity(self, agent: Any) -> float | None:
        self._exit("last_activity")
        return None


async def test_a_hook_that_exits_ends_neither_the_loop_nor_a_session(source: Any, room: str) -> None:
    """Nor does a builder, and none that raises what no future brings back is waited for in vain."""
    raises: list[type[BaseException]] = []

    def build(request: BuildRequest) -> Agent:
        if raises:
            raise raises[0]
        return Agent(request)

    hooks = Exits()
    async with AsyncWorker(build, redis=source, room=room, lease=3.0, lifecycle=hooks) as worker:
        for number in range(2):
            async with worker.turn("s", wait=0) as turn:
                assert turn.fresh is (number == 0)
        await worker.evict("s")
        await asyncio.to_thread(wait_until, lambda: "release" in hooks.asked)
        for one in (SystemExit, StopIteration):
            raises[:] = [one]
            with pytest.raises(BuildFailed):
                async with asyncio.timeout(5), worker.turn("s"):
                    pass
        raises.clear()
        async with worker.turn("s", wait=0) as turn:
            assert turn.fresh
    assert {"release", "snapshot", "last_activity"} <= set(hooks.asked)
