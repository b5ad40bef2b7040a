"""Messages are hints: what is lost with the connection is found by reconciling. Real only."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import redis
from support import wait_until

from coordinator import Coordinator
from workers import Worker

Start = Callable[..., Worker]
pytestmark = pytest.mark.parametrize("backend", ["real"], indirect=True)


def mute(client: redis.Redis) -> None:
    """Cut every subscriber off."""
    client.execute_command("CLIENT", "KILL", "TYPE", "pubsub")


def test_evictions_during_a_reconnect_are_found(start: Start, look: Coordinator, client: redis.Redis) -> None:
    worker = start(reconcile_every=3600.0)
    agents = []
    for number in range(150):
        with worker.turn(f"s{number}") as turn:
            agents.append(turn.agent)
    for number in range(0, 150, 2):
        if number % 10 == 0:
            mute(client)
        look.evict(f"s{number}", mode="hard" if number % 4 else "soft")
    wait_until(lambda: len(worker.resident) == 75, what="what was evicted while nobody listened is released")
    assert worker._engine.departures.finish(time.monotonic() + 20)
    for number, agent in enumerate(agents):
        expected = (0, 0) if number % 2 else (0, 1) if number % 4 else (1, 0)
        assert (agent.released, agent.closed) == expected, f"s{number}"
    wait_until(lambda: client.hlen(f"greenroom:{{{look.settings.room}}}:closing") == 0)


def test_the_timer_reconciles_without_any_message(
    start: Start, look: Coordinator, client: redis.Redis, room: str
) -> None:
    worker = start(reconcile_every=0.5)
    with worker.turn("s") as turn:
        agent = turn.agent
    with worker.turn("kept"):
        pass
    # as if the eviction's message had got lost
    prefix = f"greenroom:{{{room}}}:"
    client.delete(prefix + "session:s")
    client.zrem(prefix + "lru", "s")
    client.zrem(prefix + "activity", "s")
    wait_until(lambda: agent.released == 1)
    assert worker.resident == ["kept"]


def test_what_redis_says_we_hold_and_we_do_not_is_disowned(start: Start, look: Coordinator) -> None:
    worker = start(reconcile_every=0.5)
    for name in ("s", "t"):
        with worker.turn(name):
            pass
    copy = worker._engine.copies._newest["s"]
    worker._engine.departures.discard("s", copy.generation, "soft", "lost")  # gone here, and Redis does not know
    wait_until(lambda: look.session("s") is None)
    assert look.session("t") is not None
    assert look.counters()["evictions:lost"] == 1


def test_a_listener_that_fails_goes_on(
    start: Start, look: Coordinator, monkeypatch: pytest.MonkeyPatch, client: redis.Redis
) -> None:
    worker = start()
    with worker.turn("s"):
        pass
    failures = []

    def broken(message: object) -> None:
        failures.append(message)
        raise RuntimeError("a bug")

    monkeypatch.setattr(worker._engine, "on_message", broken)
    look.evict("s")
    wait_until(lambda: failures)
    wait_until(lambda: worker.resident == [], what="the listener subscribed again and reconciled")
