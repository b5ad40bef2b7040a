"""What running such caches taught its users, later: H12–H20. (H11 is in test_endings.py, H18 is the gateway's.)"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.fleet import CONFIG, Fleet, until
from support.plain import Agent

from coordinator import LeaseLost, SessionBusy
from coordinator.private_redis import PrivateRedis
from workers import AsyncWorker, Worker

SHORT = 1.5


# -- H12: fork

_FORK = """
import asyncio, os, sys, time
from coordinator import SessionBusy
from workers import AsyncWorker, Worker
class Agent: pass
def child_of(turn):
    pid = os.fork()
    if pid: assert os.waitpid(pid, 0)[1] == 0, "the child could not leave quietly"
    return not pid
def sync():
    url, room = sys.argv[2:]
    with Worker(lambda r: Agent(), redis=url, room=room) as one, Worker(lambda r: Agent(), redis=url, room=room) as two:
        child = False
        try:
            with one.turn("s") as turn:
                agent = turn.agent
                child = child_of(turn)
                if not child:
                    try:
                        with two.turn("s", wait=0): print("two has it")
                    except SessionBusy: print("busy")
        finally:
            if child: os._exit(0 if turn._copy else 3)
        with one.turn("s") as turn: print("warm" if turn.agent is agent else "cold")
async def both():
    url, room = sys.argv[2:]
    async with AsyncWorker(lambda r: Agent(), redis=url, room=room) as one:
        async with AsyncWorker(lambda r: Agent(), redis=url, room=room) as two:
            child = False
            try:
                async with one.turn("s") as turn:
                    agent = turn.agent
                    child = child_of(turn)
                    if not child:
                        try:
                            async with two.turn("s", wait=0): print("two has it")
                        except SessionBusy: print("busy")
            finally:
                if child: os._exit(0 if turn._copy else 3)
            async with one.turn("s") as turn: print("warm" if turn.agent is agent else "cold")
sync() if sys.argv[1] == "sync" else asyncio.run(both())
"""


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_h12_a_child_forked_inside_a_turn_cannot_end_it(kind: str, server: PrivateRedis, room: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", _FORK, kind, server.url, room]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.split(), done.returncode) == (["busy", "warm"], 0), done.stderr


# -- H13: snapshots


async def test_h13_a_turn_that_raised_leaves_the_last_good_snapshot(fleet: Fleet) -> None:
    one, two = await fleet.workers(2)
    await fleet.say(one, "telegram:1", "good")
    with pytest.raises(ZeroDivisionError):
        async with fleet.turn(one, "telegram:1") as play:
            await play.say("bad")
            raise ZeroDivisionError
    assert (await fleet.say(two, "telegram:1", "next")).history == ["good", "next"]


async def test_h13_a_turn_that_raised_keeps_its_agent_or_lets_it_go(fleet: Fleet) -> None:
    (one,) = await fleet.workers(1)
    await fleet.say(one, "telegram:1")
    for on_error, fresh in (("keep", False), ("evict", True)):
        with pytest.raises(ZeroDivisionError):
            async with fleet.turn(one, "telegram:1", on_error=on_error):
                raise ZeroDivisionError
        assert (await fleet.say(one, "telegram:1", on_error=on_error)).fresh is fresh


class Nothing(Exception):
    """An exception that is falsy, as a collection of errors may be that happens to be empty."""

    def __bool__(self) -> bool:
        return False


@pytest.mark.stages("fake", "real")
async def test_h13_whatever_it_raised(fleet: Fleet) -> None:
    (one,) = await fleet.workers(1)
    await fleet.say(one, "telegram:1", "good")
    with pytest.raises(Nothing):
        async with fleet.turn(one, "telegram:1", on_error="evict") as play:
            await play.say("half")
            raise Nothing
    said = await fleet.say(one, "telegram:1", "after")
    assert (said.fresh, said.history) == (True, ["good", "after"])


async def test_h13_a_snapshot_is_of_the_last_accepted_turn_whatever_configs_came_between(fleet: Fleet) -> None:
    one, two = await fleet.workers(2)
    other: dict[str, Any] = CONFIG | {"model": "opus"}
    await fleet.say(one, "telegram:1", "before")
    async with fleet.turn(two, "telegram:1", other) as play:
        play.agent.snapshot = lambda: None
    assert (await fleet.say(one, "telegram:1", "after")).history == ["after"], "cold, rather than as it was before"


# -- H14: the application's threads


async def test_h14_a_full_thread_pool_of_the_application_s_delays_nothing(source: Any, room: str) -> None:
    gate = threading.Event()
    pool = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(pool)
    hogs = [asyncio.create_task(asyncio.to_thread(gate.wait, 30)) for _ in range(4)]
    try:
        async with asyncio.timeout(15):
            async with AsyncWorker(Agent, redis=source, room=room, lease=SHORT) as worker:
                async with worker.turn("s") as turn:
                    await asyncio.sleep(2 * SHORT)
                    assert not turn.lost
                async with worker.turn("s") as turn:
                    assert not turn.fresh
    finally:
        gate.set()
        await asyncio.gather(*hogs)


# -- H15: limits without Redis, and an overall deadline


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_h15_limits_hold_while_redis_is_away(kind: str, room: str) -> None:
    gate, gone = threading.Event(), []

    class Hanging(Agent):
        def release_clients(self) -> None:
            if self.request.session.startswith("hangs"):
                gate.wait(30)
            gone.append(self.request.session)

    with PrivateRedis() as server:
        settings: dict[str, Any] = {"redis": server.url, "room": room, "retry_for": 0.2, "release_limit": 0.3}
        worker: Any = (Worker if kind == "sync" else AsyncWorker)(Hanging, lease=30.0, leave_for=3.0, **settings)
        await _do(worker.start)
        for number in range(4):
            await _a_turn(worker, f"hangs:{number}")
        await _a_turn(worker, "quick")
        server.kill()
        for copy in list(worker._engine.copies):
            worker._engine.departures.discard(copy.session, copy.generation, "soft", "lost")
        await until(lambda: gone == ["quick"], what="the one that does not hang")
        gate.set()
        await _do(worker.close)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_h15_leaving_has_a_deadline_however_many_releases_hang(kind: str, source: Any, room: str) -> None:
    gate = threading.Event()

    class Hanging(Agent):
        def release_clients(self) -> None:
            gate.wait(30)

    worker: Any = (Worker if kind == "sync" else AsyncWorker)(
        Hanging, redis=source, room=room, release_limit=0.5, leave_for=30.0
    )
    await _do(worker.start)
    for number in range(80):
        await _a_turn(worker, f"s{number}")
    began = time.monotonic()
    await _do(worker.close)
    taken = time.monotonic() - began
    gate.set()
    assert taken < 10, "two rounds of half a second, however many hang: one after the other it was eleven"


async def test_h15_the_deadline_itself(source: Any, room: str) -> None:
    gate = threading.Event()

    class Hanging(Agent):
        def release_clients(self) -> None:
            gate.wait(60)

    worker = Worker(Hanging, redis=source, room=room, release_limit=60.0, leave_for=0.5)
    worker.start()
    with worker.turn("s"):
        pass
    async with asyncio.timeout(6):
        await asyncio.to_thread(worker.close)
    gate.set()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("how", ["hangs", "is gone"])
async def test_h15_leaving_has_a_deadline_also_without_redis(kind: str, how: str, room: str) -> None:
    """The lease is long, and so is what a call may take; the deadline of leaving is shorter."""
    with PrivateRedis() as server:
        worker: Any = (Worker if kind == "sync" else AsyncWorker)(
            Agent, redis=server.url, room=room, lease=60.0, leave_for=1.0
        )
        await _do(worker.start)
        await _a_turn(worker, "s")
        if how == "hangs":
            os.kill(server.pid, signal.SIGSTOP)
        else:
            server.kill()
        try:
            async with asyncio.timeout(6):
                await _do(worker.close)
        finally:
            if how == "hangs":
                os.kill(server.pid, signal.SIGCONT)


async def _do(method: Any) -> None:
    result = method() if asyncio.iscoroutinefunction(method) else await asyncio.to_thread(method)
    if result is not None:
        await result


async def _a_turn(worker: Any, session: str) -> None:
    if isinstance(worker, AsyncWorker):
        async with worker.turn(session):
            return
    with worker.turn(session):
        pass


# -- H16: a drain from inside a turn


async def test_h16_a_drain_asked_for_inside_a_turn_does_not_wait_for_it(source: Any, room: str) -> None:
    async with asyncio.timeout(20):
        worker = AsyncWorker(Agent, redis=source, room=room, drain_for=60.0)
        await worker.start()
        async with worker.turn("s") as turn:
            agent = turn.agent
            await worker.close()
            assert (agent.released, turn.lost) == (0, False)
        await worker.close()
        assert agent.released == 1


def test_h16_also_with_threads(source: Any, room: str) -> None:
    began = time.monotonic()
    worker = Worker(Agent, redis=source, room=room, drain_for=60.0)
    worker.start()
    with worker.turn("s") as turn:
        agent = turn.agent
        worker.close()
        assert (agent.released, turn.lost) == (0, False)
    worker.close()
    assert agent.released == 1
    assert time.monotonic() - began < 30


# -- H17: whatever stops a turn frees its session


@pytest.mark.parametrize("how", ["crash", "interrupt", "forget", "limit"])
async def test_h17_stopping_a_turn_frees_its_session(fleet: Fleet, how: str) -> None:
    one, two = await fleet.workers(2, lease=SHORT, **({"turn_limit": 0.3} if how == "limit" else {}))
    play = await one.open("telegram:1")
    if how == "crash":
        await play.end(RuntimeError("the handler crashed"))
    elif how == "interrupt":
        assert await two.interrupt("telegram:1")
        await until(play.agent.stop_requested.is_set)
        await play.end()
    elif how == "forget":
        await play.forget()
    async with asyncio.timeout(20):
        await fleet.say(two, "telegram:1")
    if how == "limit":
        assert play.agent.stop_requested.is_set(), "it was asked to stop"
        with pytest.raises(LeaseLost):
            await play.end()


async def test_h17_a_cancelled_turn_frees_its_session(source: Any, room: str) -> None:
    async with AsyncWorker(Agent, redis=source, room=room) as one, AsyncWorker(Agent, redis=source, room=room) as two:
        opened = asyncio.Event()

        async def handler() -> None:
            async with one.turn("s"):
                opened.set()
                await asyncio.sleep(60)

        task = asyncio.create_task(handler())
        await opened.wait()
        task.cancel()
        async with asyncio.timeout(10), two.turn("s"):
            pass


# -- H19, H20: who waits


@pytest.mark.processes
async def test_h19_what_a_turn_builds_from_is_read_after_its_lease_is_taken(fleet: Fleet) -> None:
    one, two = await fleet.workers(2)
    await fleet.say(one, "telegram:1", "before")
    async with fleet.turn(one, "telegram:1") as play:
        waiting = asyncio.create_task(fleet.say(two, "telegram:1", "after"))
        await until(lambda: fleet.client.zcard(fleet.keys.waiting("telegram:1")))
        await play.say("meanwhile")
    assert (await waiting).history == ["before", "meanwhile", "after"]


@pytest.mark.processes
async def test_h20_whoever_waits_is_told_how_many_are_ahead_and_who_has_it(fleet: Fleet) -> None:
    one, two = await fleet.workers(2)
    play = await one.open("telegram:1")
    waiting = []
    for number in range(3):
        waiting.append(asyncio.create_task(fleet.say(two, "telegram:1")))
        await until(lambda number=number: fleet.client.zcard(fleet.keys.waiting("telegram:1")) == number + 1)
    with pytest.raises(SessionBusy) as busy:
        await two.open("telegram:1", wait=0)
    assert (busy.value.worker, busy.value.why, busy.value.ahead) == (one.id, "turn", 3)
    assert 0 <= busy.value.running < 60
    assert str(busy.value).endswith("; 3 ahead")
    with pytest.raises(SessionBusy) as busy:
        await two.open("telegram:1", wait=0.2)
    assert busy.value.ahead == 3
    assert fleet.look("telegram:1").waiting == 3
    await play.end()
    await asyncio.gather(*waiting)
