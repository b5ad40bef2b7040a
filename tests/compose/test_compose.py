"""The stack of docker-compose.yml, really built and run: `make test-compose`.

COMPOSE is the command for compose (`docker compose`, else `docker-compose`). Containers are one project of their own,
on ports of their own, and are removed at the end.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from support import wait_until
from support.crowd import SESSIONS, Crowd

ROOT = Path(__file__).parents[2]
PROJECT = "greenroom-test"
pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]


def run(*words: str, **environ: str) -> str:
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environ})
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def command() -> list[str]:
    if named := os.environ.get("COMPOSE"):
        return shlex.split(named)
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True)
    return ["docker", "compose"] if plugin.returncode == 0 else ["docker-compose"]


class Container:
    """One replica, and the way to it from outside."""

    def __init__(self, name: str) -> None:
        self.name = name
        port = run("docker", "port", name, "8000").split()[0].rpartition(":")[2]
        self.url = f"http://127.0.0.1:{port}"
        self.worker: str = httpx.get(f"{self.url}/readyz").json()["worker"]

    def path(self, session: str) -> str:
        return f"{self.url}/v1/sessions/{quote(session, safe='')}/turns"

    def turn(self, session: str, message: str = "hello") -> dict[str, Any]:
        response = httpx.post(self.path(session), json={"message": message}, timeout=60.0)
        assert response.status_code == 200, response.text
        return dict(response.json())


class Entry(Container):
    """Whichever replica it is."""

    def __init__(self) -> None:
        self.url, self.worker = "http://127.0.0.1:18000", "entry"


class Stack:
    """What compose runs."""

    def compose(self, *words: str) -> str:
        settings = {"GREENROOM_PORT": "18000", "GREENROOM_PORTS": "18001-18099", "GREENROOM_LEASE": "3"}
        return run(*command(), *words, COMPOSE_PROJECT_NAME=PROJECT, **settings)

    def names(self, service: str) -> list[str]:
        labels = [f"label=com.docker.compose.{key}" for key in (f"project={PROJECT}", f"service={service}")]
        found = run("docker", "ps", "-a", "--filter", labels[0], "--filter", labels[1], "--format", "{{.Names}}")
        return sorted(found.split())

    def about(self, name: str) -> dict[str, Any]:
        return dict(json.loads(run("docker", "inspect", name))[0])

    def healthy(self, name: str) -> bool:
        return bool(self.about(name)["State"].get("Health", {}).get("Status") == "healthy")

    def replicas(self, count: int = 3) -> list[Container]:
        """When all are healthy."""
        names = self.names("gateway")
        assert len(names) == count
        wait_until(lambda: all(self.healthy(name) for name in names), 60.0, what="healthy replicas")
        return [Container(name) for name in names]

    def redis_cli(self, *words: str) -> str:
        return run("docker", "exec", self.names("redis")[0], "redis-cli", *words).strip()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    if not shutil.which("docker"):
        pytest.fail("there is no docker")
    made = Stack()
    try:
        made.compose("up", "-d", "--build")
        yield made
    finally:
        made.compose("down", "-v", "--timeout", "30")


def test_three_replicas_are_one_gateway(stack: Stack) -> None:
    replicas = stack.replicas()
    answers = [replica.turn("telegram:12345", "/prompt") for replica in replicas]
    assert len({answer["reply"] for answer in answers}) == 1
    assert sorted(answer["forwarded"] for answer in answers) == [False, True, True]
    assert [answer["fresh"] for answer in answers] == [True, False, False]
    holder = stack.redis_cli("HGET", "greenroom:{default}:session:telegram:12345", "worker")
    assert {answer["worker"] for answer in answers} == {holder}
    assert holder in run("docker", "exec", replicas[0].name, "greenroom", "sessions")


def test_it_is_set_up_for_keeps(stack: Stack) -> None:
    redis = stack.about(stack.names("redis")[0])
    assert not any(redis["NetworkSettings"]["Ports"].values()), "Redis is for the replicas only"
    assert stack.redis_cli("CONFIG", "GET", "appendonly").split() == ["appendonly", "yes"]
    assert stack.redis_cli("CONFIG", "GET", "maxmemory-policy").split() == ["maxmemory-policy", "noeviction"]
    assert [mount["Destination"] for mount in redis["Mounts"] if mount["Type"] == "volume"] == ["/data"]
    for replica in stack.replicas():
        about = stack.about(replica.name)
        assert run("docker", "exec", replica.name, "id", "-u").strip() == "10001"
        assert {port["HostIp"] for port in about["NetworkSettings"]["Ports"]["8000/tcp"]} == {"127.0.0.1"}
        environ = dict(one.partition("=")[::2] for one in about["Config"]["Env"])
        assert about["Config"]["StopTimeout"] > float(environ["GREENROOM_DRAIN_FOR"]) + 5 + 90


def test_a_rolling_restart_loses_nothing(stack: Stack) -> None:
    """Clients of the entry, which send nothing twice, do not notice it."""
    entry, names = Entry(), [replica.name for replica in stack.replicas()]
    first = {session: entry.turn(session, "/prompt")["reply"] for session in SESSIONS}
    with Crowd([entry]) as crowd:
        crowd.answered(30)
        began = {stack.about(name)["State"]["StartedAt"] for name in names}
        run("docker", "restart", *names)
        assert not began & {stack.about(name)["State"]["StartedAt"] for name in names}
        crowd.answered(30)
    assert [one for one in crowd.sent if one.failed] == []
    stack.replicas()
    for session in SESSIONS:
        assert entry.turn(session, "/prompt")["reply"] == first[session]
        sent = sum(one.session == session for one in crowd.sent)
        assert entry.turn(session, "/count")["reply"] == str(sent + 3), "each message ran once"


def test_a_new_version_takes_over(stack: Stack) -> None:
    """As docs/compose.md has it: new replicas beside the old ones, which then go all at once."""
    entry, old = Entry(), [replica.name for replica in stack.replicas()]
    first = {session: entry.turn(session, "/prompt")["reply"] for session in SESSIONS}
    with Crowd([entry]) as crowd:
        stack.compose("up", "-d", "--no-deps", "--no-recreate", "--scale", "gateway=6", "gateway")
        stack.replicas(6)
        run("docker", "stop", *old)
        assert [stack.about(name)["State"]["ExitCode"] for name in old] == [0, 0, 0]
        run("docker", "rm", *old)
        stack.compose("up", "-d", "--no-deps", "--no-recreate", "--scale", "gateway=3", "gateway")
        crowd.answered(30)
    assert [one for one in crowd.sent if one.failed] == []
    assert not set(old) & set(stack.names("gateway"))
    for session in SESSIONS:
        assert entry.turn(session, "/prompt")["reply"] == first[session]


def test_a_fourth_replica_joins_and_leaves(stack: Stack) -> None:
    stack.replicas()
    stack.compose("up", "-d", "--no-recreate", "--scale", "gateway=4")
    replicas = stack.replicas(4)
    homes = {replicas[0].turn(f"new:{number}")["worker"] for number in range(24)}
    assert homes == {replica.worker for replica in replicas}
    stack.compose("up", "-d", "--no-recreate", "--scale", "gateway=3")
    replicas = stack.replicas(3)
    assert {replicas[0].turn(f"new:{number}")["worker"] for number in range(24)} <= {one.worker for one in replicas}
    assert int(stack.redis_cli("ZCARD", "greenroom:{default}:workers")) == 3, "it left in order"


def test_a_replica_that_is_killed_is_not_missed(stack: Stack) -> None:
    entry, (victim, *_) = Entry(), stack.replicas()
    first = {f"mine:{number}": victim.turn(f"mine:{number}", "/prompt") for number in range(12)}
    assert victim.worker in {answer["worker"] for answer in first.values()}
    run("docker", "kill", "--signal", "KILL", victim.name)
    began = time.monotonic()
    for session, before in first.items():
        after = entry.turn(session, "/prompt")
        assert after["reply"] == before["reply"]
        assert after["worker"] != victim.worker
    assert time.monotonic() - began < 3.0 + 1.0, "the lease and a second"
    run("docker", "start", victim.name)
    assert len(stack.replicas()) == 3


def test_what_is_warm_outlives_redis(stack: Stack) -> None:
    one, other, _ = stack.replicas()
    before = one.turn("lasting", "/prompt")
    run("docker", "restart", stack.names("redis")[0])
    wait_until(lambda: httpx.get(f"{other.url}/readyz").status_code == 200, 30.0, what="readiness")
    after = other.turn("lasting", "/prompt")
    assert (after["reply"], after["worker"], after["fresh"]) == (before["reply"], before["worker"], False)
    assert after["fence"] > before["fence"]


def test_each_replica_leaves_in_order(stack: Stack) -> None:
    names = stack.names("gateway")
    stack.replicas()
    stack.compose("stop", "gateway")
    assert [stack.about(name)["State"]["ExitCode"] for name in names] == [0, 0, 0]
    assert stack.redis_cli("ZCARD", "greenroom:{default}:workers") == "0"
