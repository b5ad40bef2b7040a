"""Every script on every server: Redis 6.2, 7 and 8, Valkey, a cluster node, and one that is out of memory.

Redis 7 is the machine's own server; `.ci/old-and-new-redis .redis` fetches the others. Where one is missing its tests
are skipped, and fail in CI.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from support import no_server, wait_until
from support.plain import Agent

from coordinator import Coordinator, CoordinatorUnavailable, Limits, SessionBusy
from coordinator.private_redis import PrivateRedis, find_server
from coordinator.scripts import NAMES, scripts
from workers import Worker

FETCHED = Path(__file__).parents[1] / ".redis"
EXPECTED = {"redis-6.2": "6.2.", "redis-7": "7.", "redis-8": "8.", "valkey": "7.2."}


@pytest.fixture(params=EXPECTED)
def some_server(request: pytest.FixtureRequest) -> Iterator[PrivateRedis]:
    name: str = request.param
    found = shutil.which("redis-server") if name == "redis-7" else str(FETCHED / name)
    if not found or not os.access(found, os.X_OK):
        pytest.skip(f"no {name} here: .ci/old-and-new-redis .redis") if not os.environ.get("CI") else no_server()
    with PrivateRedis(server=found) as server:
        with redis.Redis.from_url(server.url) as client:
            version = client.info("server")["redis_version"]
        if name == "redis-7" and not version.startswith("7."):
            pytest.skip(f"the machine's own server is {version}")
        assert version.startswith(EXPECTED[name])
        yield server


def play(url: str, room: str) -> set[str]:
    """A little of everything; the names of the scripts that were used."""
    used: set[str] = set()
    limits = Limits(worker=2, room=3, idle_ttl=600)
    with (
        Worker(Agent, redis=url, room=room, lease=1.0, limits=limits) as one,
        Worker(Agent, redis=url, room=room, lease=1.0, limits=limits) as two,
        Coordinator(url, room) as look,
    ):
        links = [one._io.link, two._io.link, one._engine.link, two._engine.link, look._flows._link]  # type: ignore[union-attr]
        for link in links:
            call = link.call

            async def noted(name: str, *argv: Any, call: Any = call, **options: Any) -> Any:
                used.add(name)
                return await call(name, *argv, **options)

            link.call = noted  # type: ignore[method-assign]
        for number in range(4):
            with one.turn(f"s{number}", {"model": "m"}, lease_key="k") as turn:
                turn.rebind(f"k{number}")
                with pytest.raises(SessionBusy), two.turn(f"s{number}", wait=0):
                    pass
        wait_until(lambda: one.resident == ["s2", "s3"])
        with two.turn("s3", {"model": "m"}) as turn:
            assert turn.fresh
            assert one.interrupt("s3")
            wait_until(lambda: turn.agent.interrupted == 1)
        with pytest.raises(Exception, match="builder raised"), Worker(lambda _: 1 / 0, redis=url, room=room) as bad:
            links.append(bad._engine.link)
            with bad.turn("broken"):
                pass
        assert two.evict("s3", mode="hard")
        assert two.sweep() == 0
        one._engine.reconcile()
        one._engine.departures.discard("s2", one._engine.copies._newest["s2"].generation, "soft", "lost")
        one._engine.reconcile()
        with two.turn("last"):
            pass
        look.set_limits(Limits(room=5))
        assert look.evict_worker(two.id) == 1
        assert look.drain(two.id)
        wait_until(lambda: {"beat", "maintain", "closed"} <= used)
        assert [one.session for one in look.sessions()] == []
    return used | {"register", "abandon", "deregister"}


def test_every_script_runs(some_server: PrivateRedis, room: str) -> None:
    assert play(some_server.url, room) == set(NAMES)
    with redis.Redis.from_url(some_server.url) as client:
        for script in scripts().values():
            assert client.execute_command("SCRIPT LOAD", script.source) in (script.sha, script.sha.encode())
        assert not [key for key in client.keys("*") if not key.startswith(f"greenroom:{{{room}}}:".encode())]


def test_a_room_stays_in_one_slot(room: str) -> None:
    """On a cluster node a script that touched another slot would be refused with CROSSSLOT."""
    if not find_server():
        no_server()
    with PrivateRedis("--cluster-enabled", "yes") as server, redis.Redis.from_url(server.url) as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        wait_until(lambda: client.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        with pytest.raises(redis.ResponseError, match="same slot"):
            client.execute_command("MSET", "a", 1, "b", 2)
        play(server.url, room)


def test_out_of_memory(server: PrivateRedis, room: str) -> None:
    """Rule 17: what frees goes on; a new turn gets one clear error, and nothing of it is left."""
    with (
        PrivateRedis("--maxmemory-policy", "noeviction") as full,
        redis.Redis.from_url(full.url) as client,
        Worker(Agent, redis=full.url, room=room, lease=2.0) as worker,
        Coordinator(full.url, room) as look,
    ):
        with worker.turn("idle"), worker.turn("other"):
            pass
        with worker.turn("s") as turn:
            client.config_set("maxmemory", 1)
            with pytest.raises(CoordinatorUnavailable, match="out of memory"), worker.turn("new"):
                pass
            renewed = turn._renewed
            wait_until(lambda: turn._renewed > renewed, what="renewal works")
            assert look.evict("s")
        assert worker.resident == ["other", "idle"], "the end was accepted, and carried the eviction out"
        assert look.evict("idle")
        assert look.session("new") is None
        assert look.evict("other", mode="hard")
        client.config_set("maxmemory", 0)
        with worker.turn("new", wait=0):
            pass
