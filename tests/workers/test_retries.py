"""An answer that got lost: the call is made again, with the same turn id, and nothing happens twice. Real only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import redis
from support import wait_until
from support.proxy import Proxy

from coordinator import Coordinator, CoordinatorUnavailable, Limits
from coordinator.private_redis import PrivateRedis
from coordinator.scripts import scripts
from workers import Worker

Start = Callable[..., Worker]
pytestmark = pytest.mark.parametrize("backend", ["real"], indirect=True)


# Ask for it before `start`: workers leave while it still stands.
@pytest.fixture
def proxy(server: PrivateRedis) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


def lose(proxy: Proxy, script: str) -> None:
    """The answer of this script's next call gets lost."""
    proxy.swallow(scripts()[script].sha)


@pytest.mark.parametrize("lost", ["begin", "commit", "end"])
def test_a_lost_answer_has_no_double_effect(proxy: Proxy, start: Start, look: Coordinator, lost: str) -> None:
    worker = start(redis=proxy.url, limits=Limits(worker=2))
    for name in ("warm-up", "s"):
        lose(proxy, lost) if name == "s" else None
        with worker.turn(name) as turn:
            agent = turn.agent
    assert proxy.swallowed == 1
    with worker.turn("s") as turn:
        assert turn.agent is agent
    assert look.counters() == {"builds": 2, "hits": 1}
    assert worker.resident == ["warm-up", "s"]


def test_a_lost_end_is_accepted_although_others_were_served_since(
    proxy: Proxy, start: Start, look: Coordinator
) -> None:
    worker, other = start(redis=proxy.url, socket_timeout=1.0), start()
    served = []

    def next_in_line() -> None:
        with other.turn("s") as turn:
            served.append(turn.fence)
        with other.turn("s") as turn:
            served.append(turn.fence)

    with worker.turn("s") as turn:
        thread = threading.Thread(target=next_in_line)
        thread.start()
        wait_until(lambda: look._flows._link.keys and other._engine.line)
        lose(proxy, "end")
    thread.join(10)
    assert proxy.swallowed == 1
    assert not turn.lost
    assert turn.fence < served[0] < served[1]


def test_a_lost_abandon_is_repeated(proxy: Proxy, start: Start, look: Coordinator) -> None:
    worker = start(lambda request: 1 / 0, redis=proxy.url)
    lose(proxy, "abandon")
    with pytest.raises(Exception, match="builder raised"), worker.turn("s"):
        pass
    assert proxy.swallowed == 1
    assert look.session("s") is None


def test_a_late_begin_cannot_take_the_lease_behind_an_abandon(look: Coordinator, client: redis.Redis) -> None:
    from coordinator import LeaseLost, operations
    from coordinator.link import run

    link = look._flows._link
    run(operations.register(link, "w", 3000, epoch="", floor=0, address="", host="", pid=1, state="up", instance="1"))
    run(operations.abandon(link, "s", "w/turn", Limits()))
    with pytest.raises(LeaseLost, match="over"):
        run(operations.begin(link, session="s", worker="w", turn="w/turn", signature="x", generation=0, lease=3000))
    assert look.session("s") is None


def test_when_redis_stays_away_the_error_says_so(proxy: Proxy, start: Start) -> None:
    worker = start(redis=proxy.url, retry_for=0.3, lease=30.0)
    with worker.turn("s"):
        pass
    proxy.cut()
    with pytest.raises(CoordinatorUnavailable, match="cannot be reached"), worker.turn("s", wait=5):
        pass
    proxy.mend()
    with worker.turn("s", wait=5) as turn:
        assert not turn.fresh


def test_an_end_that_does_not_reach_redis(proxy: Proxy, start: Start) -> None:
    worker = start(redis=proxy.url, retry_for=0.3, lease=2.0)
    with pytest.raises(CoordinatorUnavailable), worker.turn("s"):
        proxy.cut()
    with pytest.raises(ZeroDivisionError):
        proxy.mend()
        with worker.turn("t"):
            proxy.cut()
            1 / 0  # noqa: B018
    proxy.mend()
    with worker.turn("s", wait=10) as turn:
        assert turn.fresh, "its lease had to run out, so its copy is not trusted"


def test_a_build_that_meets_an_outage_leaves_nothing(proxy: Proxy, start: Start, look: Coordinator) -> None:
    built = []

    def build(request: object) -> object:
        proxy.cut()
        built.append(request)
        return object()

    worker = start(build, redis=proxy.url, retry_for=0.3, lease=1.0)
    with pytest.raises(CoordinatorUnavailable), worker.turn("s"):
        pass
    assert worker.resident == []
    proxy.mend()
    wait_until(lambda: look.session("s") is None, what="the lease runs out by itself")
    assert len(built) == 1
