"""The beat renews, fences, joins again and sweeps; whatever goes wrong in it, it goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import redis
from support import Clock, movable, wait_until
from support.proxy import Proxy

from coordinator import Coordinator, LeaseLost, Limits, SessionBusy
from coordinator import operations as ops
from coordinator.private_redis import PrivateRedis
from workers import Lifecycle, Worker
from workers.running import now

Start = Callable[..., Worker]


def wait_leases(worker: Worker, count: float) -> None:
    """Until so many leases have passed, by the worker's own beats."""
    engine = worker._engine
    until = now() + count * engine.settings.lease
    wait_until(lambda: now() > until, seconds=60)


def test_a_long_turn_keeps_its_lease(start: Start) -> None:
    worker, other = start(lease=1.0), start(lease=1.0)
    with worker.turn("s", lease_key="k") as turn:
        wait_leases(worker, 2.5)
        for session, key in (("s", None), ("t", "k")):
            with pytest.raises(SessionBusy), other.turn(session, lease_key=key, wait=0):
                pass
    assert not turn.lost


def test_renewal_goes_on_after_any_error(start: Start, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    worker = start(lease=1.5)
    beat, failed = ops.beat, []

    async def sometimes(*arguments: Any, **options: Any) -> Any:
        if len(failed) < 2:
            failed.append(1)
            raise ZeroDivisionError("a bug in the beat")
        return await beat(*arguments, **options)

    monkeypatch.setattr(ops, "beat", sometimes)
    with worker.turn("s") as turn:
        wait_leases(worker, 1.5)
    assert len(failed) == 2
    assert not turn.lost
    assert "the beat failed and goes on" in caplog.text


def test_more_turns_than_one_renewal_takes(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "RENEWALS", 2)
    worker = start(lease=1.5)
    turns = [worker.turn(f"s{number}").__enter__() for number in range(5)]
    wait_leases(worker, 1.5)
    for turn in turns:
        turn.__exit__(None, None, None)


@pytest.mark.parametrize("backend", ["real"], indirect=True)
def test_cut_off_from_redis_a_turn_is_lost_before_its_lease_runs_out(
    start: Start, server: PrivateRedis, look: Coordinator
) -> None:
    """G6: by our own clock, before Redis gives the session away. The agent is asked to stop and is not used again."""
    with Proxy(server.port) as proxy:
        worker, other = start(redis=proxy.url, lease=2.0, retry_for=0.2), start(lease=2.0)
        with pytest.raises(LeaseLost), worker.turn("s") as turn:
            agent = turn.agent
            proxy.cut()
            wait_until(lambda: turn.lost)
            with pytest.raises(SessionBusy), other.turn("s", wait=0):
                pass
            wait_until(lambda: agent.interrupted == 1)
            proxy.mend()
        wait_until(lambda: agent.released == 1)
        with worker.turn("s", wait=10) as turn:
            assert turn.agent is not agent


def test_a_worker_that_redis_forgot_joins_again(
    start: Start, client: redis.Redis, room: str, look: Coordinator
) -> None:
    worker = start(lease=1.5)
    with worker.turn("kept"):
        pass
    client.zrem(f"greenroom:{{{room}}}:workers", worker.id)
    with worker.turn("new") as turn:
        assert turn.fresh
    client.zrem(f"greenroom:{{{room}}}:workers", worker.id)
    wait_until(lambda: worker.id in [info.worker for info in look.workers()], what="the beat joins again")
    assert worker.resident == ["kept", "new"]


def test_after_a_loss_of_state_owners_re_assert_what_they_hold(
    start: Start, client: redis.Redis, room: str, look: Coordinator
) -> None:
    """Rule 15, G7: fences rise, nobody else is served what somebody holds, and the copies stay warm."""
    worker, other = start(lease=2.0), start(lease=2.0)
    with worker.turn("idle", {"model": "m"}) as turn:
        idle = turn.agent
    with worker.turn("busy", lease_key="k") as turn:
        fence = turn.fence
        keys = client.keys(f"greenroom:{{{room}}}:*")
        client.delete(*keys)
        with pytest.raises(SessionBusy), other.turn("busy", wait=0):
            pass
        wait_until(lambda: (found := look.session("busy")) and found.turn == turn.id, what="the lease is re-asserted")
        with pytest.raises(SessionBusy), other.turn("t", lease_key="k", wait=0):
            pass
    wait_until(lambda: look.session("idle"))
    with worker.turn("idle", {"model": "m"}) as turn:
        assert turn.agent is idle
        assert turn.fence > fence
    with other.turn("never seen", wait=10) as turn:  # busy for as long as grace lasts, then free
        assert turn.fence > fence
    assert [event.event for event in look.events()].count("adopted") == 2


def test_the_fleet_is_swept_without_any_service(start: Start, source: Any, room: str, client: redis.Redis) -> None:
    library = movable()
    clock = Clock(client, f"greenroom:{{{room}}}:")
    worker = start(lease=1.0, limits=Limits(idle_ttl=600), scripts=library)
    with worker.turn("old") as turn:
        old = turn.agent
    clock.advance(500)
    with worker.turn("young"):
        pass
    wait_leases(worker, 1)
    assert worker.resident == ["old", "young"]
    clock.advance(101)
    wait_until(lambda: worker.resident == ["young"])
    wait_until(lambda: old.released == 1)


def test_a_lowered_limit_is_enforced_by_the_beat(start: Start, look: Coordinator) -> None:
    worker = start(lease=1.0)
    for number in range(80):
        with worker.turn(f"s{number}"):
            pass
    look.set_limits(Limits(room=70))
    wait_until(lambda: len(worker.resident) == 70)
    look.set_limits(Limits(worker=3, memory="1TiB"))
    wait_until(lambda: worker.resident == ["s77", "s78", "s79"])
    look.set_limits(None)


def test_the_end_of_a_session_that_nobody_could_run_is_run_by_another(
    start: Start, client: redis.Redis, room: str, look: Coordinator
) -> None:
    """H5: exactly once in the fleet, also when the worker it was left to is gone."""
    ended: list[str] = []

    class Ends(Lifecycle):
        def end_session(self, session: str) -> None:
            ended.append(session)

    start(lease=1.0, lifecycle=Ends()), start(lease=1.0, lifecycle=Ends())
    client.hset(f"greenroom:{{{room}}}:closing", "left", "dead-worker 17")
    look.evict("nobody", mode="hard")
    wait_until(lambda: sorted(ended) == ["left", "nobody"])
    wait_until(lambda: client.hlen(f"greenroom:{{{room}}}:closing") == 0)
    assert sorted(ended) == ["left", "nobody"]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How much memory the process seems to have."""
    state = {"resident": 100}
    monkeypatch.setattr("workers.upkeep.resident_bytes", lambda: state["resident"])
    return state


def test_over_its_memory_limit_a_worker_sheds_idle_agents(start: Start, memory: dict[str, int], caplog: Any) -> None:
    worker = start(lease=60.0, limits=Limits(memory=1000))
    look = worker._engine.upkeep._keep_memory_limit  # what a round of upkeep does about it; the next is far away
    with worker.turn("s0"):
        for number in range(1, 17):
            with worker.turn(f"s{number}"):
                pass
        memory["resident"] = 2000
        for oldest_idle in ("s3", "s4"):
            look()
            wait_until(lambda oldest_idle=oldest_idle: worker.resident[:2] == ["s0", oldest_idle])
        look()
        assert "shedding agents frees nothing" in caplog.text
        look()
        assert caplog.text.count("over the memory limit (2000 of 1000 bytes): shed") == 2
        memory["resident"] = 3000
        look()
        assert caplog.text.count(": shed") == 3, "it grew further: it sheds again"
        memory["resident"] = 500


def test_an_operator_s_word_reaches_a_worker_s_log(start: Start, look: Coordinator, caplog: Any) -> None:
    caplog.set_level(logging.WARNING)
    worker = start(lease=30.0)
    look.drain(worker.id)
    wait_until(lambda: "told to drain" in caplog.text, what="told by its channel, long before the next beat")
