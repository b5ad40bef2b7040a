"""After Redis lost its state: owners re-assert what they hold, the last use wins, no turn and no copy is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from support import wait_until
from support.plain import Agent

from coordinator import Coordinator, CoordinatorUnavailable, LeaseLost
from coordinator import operations as ops
from coordinator.private_redis import PrivateRedis
from workers import Worker

Start = Callable[..., Worker]


def forget(client: redis.Redis, room: str) -> None:
    """Redis loses everything it knew of the room."""
    client.delete(*client.keys(f"greenroom:{{{room}}}:*"))


@pytest.mark.parametrize("backend", ["real"], indirect=True)
def test_a_restart_without_persistence_costs_no_turn_and_no_copy(room: str, backend: str) -> None:
    """G7: the listener is back long before the next beat, and must not take an empty Redis at its word."""
    with PrivateRedis() as server, Worker(Agent, redis=server.url, room=room, lease=30.0) as worker:
        with worker.turn("idle") as turn:
            idle = turn.agent
        with worker.turn("busy") as turn:
            server.kill()
            server.start()
            with Coordinator(server.url, room) as look:
                wait_until(lambda: look.session("busy") and look.session("idle"), what="both are re-asserted")
        assert not turn.lost
        with worker.turn("idle") as turn:
            assert turn.agent is idle


def test_a_turn_that_ends_right_after_a_loss_of_state_is_accepted(start: Start, client: redis.Redis, room: str) -> None:
    worker = start(lease=30.0)
    with worker.turn("s") as turn:
        agent = turn.agent
        forget(client, room)
    with worker.turn("s") as turn:
        assert turn.agent is agent


def test_a_build_during_which_state_is_lost_is_committed(start: Start, client: redis.Redis, room: str) -> None:
    def build(request: Any) -> Agent:
        forget(client, room)
        return Agent(request)

    with start(build, lease=30.0).turn("s", wait=0) as turn:
        assert turn.fresh
    assert not turn.lost


def test_a_reset_during_grace_is_not_undone(start: Start, client: redis.Redis, room: str) -> None:
    owner, other = start(lease=30.0), start(lease=30.0)
    with owner.turn("s") as turn:
        agent = turn.agent
    forget(client, room)
    other._engine.rejoin()
    other.evict("s", mode="hard")
    owner._engine.rejoin()
    wait_until(lambda: agent.released == 1, what="what was reset meanwhile is not re-asserted; its end is the other's")
    assert owner.resident == []


def test_what_was_evicted_during_grace_is_not_adopted_again(start: Start, client: redis.Redis, room: str) -> None:
    owner, other = start(lease=30.0), start(lease=30.0)
    with owner.turn("s") as turn:
        agent = turn.agent
    forget(client, room)
    owner._engine.rejoin()
    owner._engine.on_message = lambda message: None  # type: ignore[method-assign] # every message gets lost
    with other.turn("s") as turn:
        assert turn.fresh
    other.evict("s")
    owner._engine.reconcile()
    wait_until(lambda: agent.released == 1)
    assert owner.resident == []


@pytest.mark.parametrize("backend", ["real"], indirect=True)
def test_an_agent_whose_end_never_reached_redis_is_not_adopted(room: str, backend: str) -> None:
    with PrivateRedis() as server, Worker(Agent, redis=server.url, room=room, lease=3.0, retry_for=0.2) as worker:
        turn = worker.turn("s").__enter__()
        agent = turn.agent
        server.kill()
        with pytest.raises(CoordinatorUnavailable):
            turn.__exit__(None, None, None)
        server.start()
        with worker.turn("s", wait=20) as turn:
            assert turn.agent is not agent
        wait_until(lambda: agent.released == 1)


def test_of_two_claims_the_higher_fence_wins(start: Start, client: redis.Redis, room: str) -> None:
    """Whoever comes first: what counts is the last use."""
    stale, other = start(lease=30.0), start(lease=30.0)
    stale._engine.on_message = lambda message: None  # type: ignore[method-assign] # 'moved' gets lost
    with stale.turn("s") as turn:
        old = turn.agent
    with other.turn("s") as turn:
        current = turn.agent
    forget(client, room)
    stale._engine.rejoin()
    assert client.hget(f"greenroom:{{{room}}}:session:s", "worker") == stale.id.encode()
    other._engine.rejoin()
    assert client.hget(f"greenroom:{{{room}}}:session:s", "worker") == other.id.encode()
    with other.turn("s") as turn:
        assert turn.agent is current
    stale._engine.reconcile()
    wait_until(lambda: old.released == 1)


def test_a_turn_below_the_record_s_fence_is_refused(start: Start, client: redis.Redis, room: str) -> None:
    stale, other = start(lease=30.0), start(lease=30.0)
    stale._engine.on_message = lambda message: None  # type: ignore[method-assign] # 'moved' gets lost
    with stale.turn("s"):
        pass
    with pytest.raises(LeaseLost), other.turn("s") as lower:
        forget(client, room)
        with stale.turn("s") as higher:  # a veteran, first to come: its copy is re-asserted, and used
            assert higher.fence > lower.fence


@pytest.mark.parametrize("backend", ["fake", "real"], indirect=True)
def test_rebind_joins_a_redis_that_lost_its_state(start: Start, client: redis.Redis, room: str) -> None:
    worker = start(lease=30.0)
    with worker.turn("s", lease_key="first") as turn:
        forget(client, room)
        turn.rebind("second")
        assert client.zscore(f"greenroom:{{{room}}}:leases", "second")


def test_no_caller_ever_sees_that_redis_forgot_the_worker(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    from coordinator.errors import UnknownWorker

    worker = start()

    async def never(*arguments: Any, **named: Any) -> Any:
        raise UnknownWorker("Redis does not know this worker")

    with worker.turn("s") as turn:
        monkeypatch.setattr(ops, "rebind", never)
        with pytest.raises(CoordinatorUnavailable) as raised:
            turn.rebind("key")
        assert type(raised.value) is CoordinatorUnavailable
    monkeypatch.setattr(ops, "begin", never)
    with pytest.raises(CoordinatorUnavailable) as raised, worker.turn("t"):
        pass
    assert type(raised.value) is CoordinatorUnavailable
