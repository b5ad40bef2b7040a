"""The coordinator: a room read and steered from outside, by threads and by asyncio."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import redis
from support import Clock, movable

from coordinator import AsyncCoordinator, Coordinator, InvalidName, Limits
from coordinator import operations as ops
from coordinator.link import run


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest, source: Any, room: str) -> Callable[..., Any]:
    """Call a method of a Coordinator or of an AsyncCoordinator."""
    kind = Coordinator if request.param == "sync" else AsyncCoordinator

    async def ask(method: str, *arguments: Any, **options: Any) -> Any:
        coordinator = kind(source, room)
        answer = getattr(coordinator, method)(*arguments, **options)
        answer = await answer if inspect.isawaitable(answer) else answer
        closing = coordinator.close()
        if inspect.isawaitable(closing):
            await closing
        return answer

    return ask


class Stage:
    """Plays workers that hold copies, without any worker."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.link, self._turns = coordinator._flows._link, 0

    def worker(self, name: str) -> None:
        about: dict[str, Any] = {"address": f"http://{name}", "host": "h", "pid": 7, "state": "up", "instance": "1"}
        run(ops.register(self.link, name, 60_000, epoch="", floor=0, **about))

    def begin(self, session: str, worker: str, signature: str = "sig") -> str:
        self._turns += 1
        turn = f"{worker}/{self._turns}"
        run(
            ops.begin(
                self.link, session=session, worker=worker, turn=turn, signature=signature, generation=0, lease=60_000
            )
        )
        return turn

    def hold(self, session: str, worker: str, signature: str = "sig", end: bool = True) -> str:
        turn = self.begin(session, worker, signature)
        run(ops.commit(self.link, session, turn, Limits()))
        if end:
            run(ops.end(self.link, session, turn, Limits(), stamped=True))
        return turn


@pytest.fixture
def stage(source: Any, room: str) -> Any:
    with Coordinator(source, room, scripts=movable()) as coordinator:
        stage = Stage(coordinator)
        stage.worker("w1")
        stage.worker("w2")
        yield stage


async def test_a_room_is_read(ask: Any, stage: Stage) -> None:
    for number in range(300):
        stage.hold(f"s{number}", "w1")
    turn = stage.hold("busy", "w2", end=False)
    stage.begin("new", "w2")
    sessions = await ask("sessions")
    assert [one.session for one in sessions] == [f"s{number}" for number in range(300)] + ["busy", "new"]
    assert len(await ask("sessions", 3)) == 3
    assert len(await ask("sessions", 302)) == 302
    busy, new, idle = sessions[-2], sessions[-1], sessions[0]
    assert (busy.worker, busy.turn, busy.state, busy.idle) == ("w2", turn, "live", None)
    assert 0 < busy.lease_left <= 60
    assert busy.running >= 0
    assert (new.state, new.last_use) == ("building", 0)
    assert (idle.turn, idle.lease_left, idle.running) == ("", None, None)
    assert idle.idle >= 0
    assert (await ask("session", "busy")).generation == busy.generation
    assert await ask("session", "nobody") is None
    first, second = await ask("workers")
    assert (first.worker, first.address, first.pid, first.held, second.held) == ("w1", "http://w1", 7, 300, 1)
    assert 0 < first.heartbeat_left <= 60
    assert (await ask("counters"))["builds"] == 301
    events = await ask("events", limit=3)
    assert [event.event for event in events] == ["up", "up", "built"]
    later = await ask("events", since=events[-1].id)
    assert later[0].fields["session"] == "s1"


async def test_a_record_without_a_worker_is_no_session(ask: Any, stage: Stage, client: redis.Redis) -> None:
    """A room that is broken can still be looked at: the demo's control, whose leases do not exclude, leaves such."""
    stage.hold("whole", "w1")
    stage.begin("torn", "w1")
    client.hdel(stage.link.keys.session("torn"), "worker", "signature", "generation", "state")
    assert [one.session for one in await ask("sessions")] == ["whole"]
    assert await ask("session", "torn") is None


async def test_evicting_by_signature_and_by_worker(ask: Any, stage: Stage) -> None:
    for number in range(70):
        stage.hold(f"a{number}", "w1", "blue")
        stage.hold(f"b{number}", "w2", "red")
    stage.begin("new", "w2", "blue")
    stage.hold("busy", "w1", "red", end=False)
    assert await ask("evict_signature", "blue") == 71
    assert (await ask("session", "new")).evict == "soft operator"
    assert await ask("evict_worker", "w2", mode="hard", reason="reset") == 71
    assert (await ask("session", "new")).evict == "hard reset"
    assert [one.session for one in await ask("sessions")] == ["busy", "new"]
    assert await ask("evict", "busy")
    assert not await ask("evict", "nobody")
    assert (await ask("counters"))["evictions:operator"] == 70
    for wrong in ({"mode": "x"}, {"reason": "x"}):
        with pytest.raises(ValueError, match="unknown"):
            await ask("evict_worker", "w2", **wrong)
    for method in ("evict", "session", "evict_signature", "evict_worker", "drain"):
        with pytest.raises(InvalidName):
            await ask(method, "")


async def test_limits_are_set_for_the_room(ask: Any, stage: Stage, client: redis.Redis, room: str) -> None:
    assert await ask("limits") is None
    limits = Limits(room=10, worker=None, idle_ttl=2.5, memory="1GiB")
    await ask("set_limits", limits)
    assert await ask("limits") == limits
    assert client.hget(f"greenroom:{{{room}}}:settings", "worker") == b"none"
    await ask("set_limits", Limits(idle_ttl=0.0001))
    assert await ask("limits") == Limits(idle_ttl=0.001)
    await ask("set_limits", None)
    assert await ask("limits") is None


async def test_sweep_and_reap(ask: Any, stage: Stage, source: Any, room: str, client: redis.Redis) -> None:
    for number in range(150):
        stage.hold(f"s{number}", "w1")
    stage.hold("busy", "w2", end=False)
    assert await ask("sweep") == 0, "no idle_ttl is set"
    with Coordinator(source, room, scripts=movable()) as moved:
        Clock(client, moved._flows._link.keys.prefix).advance(50)
        moved.set_limits(Limits(idle_ttl=40))
        assert moved.sweep() == 150
        assert moved.reap() == 0
        Clock(client, moved._flows._link.keys.prefix).advance(50)
        assert moved.reap() == 3, "a lease and two workers"
    assert await ask("sessions") == []
    assert await ask("workers") == []


async def test_it_is_a_context_manager(source: Any, room: str) -> None:
    with Coordinator(source, room) as coordinator:
        assert coordinator.counters() == {}
    async with AsyncCoordinator(source, room) as asynchronous:
        assert await asynchronous.counters() == {}
        assert not await asynchronous.drain("nobody")
