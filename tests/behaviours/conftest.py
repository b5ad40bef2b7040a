"""The `fleet` of a behaviour: sync and async workers, on fakeredis and on a real redis-server.

A test marked `processes` also runs with every worker in a process of its own, on the real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from support.company import Company
from support.fleet import Fleet
from support.keys import fake

from coordinator.private_redis import PrivateRedis


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "processes: also with the workers in separate processes")
    config.addinivalue_line("markers", "stages(*stages): on these stages only, of fake, real and processes")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    given = any("fleet" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "fleet" not in metafunc.fixturenames or given:
        return
    only = metafunc.definition.get_closest_marker("stages")
    stages = list(only.args) if only else ["fake", "real"]
    if not only and metafunc.definition.get_closest_marker("processes"):
        stages.append("processes")
    cases = [(kind, stage) for stage in stages for kind in ("sync", "async")]
    metafunc.parametrize("fleet", cases, ids=[f"{kind}-{stage}" for kind, stage in cases], indirect=True)


@pytest.fixture(scope="session")
def company() -> Iterator[Company]:
    """Processes for workers, for the whole run."""
    company = Company()
    yield company
    company.close()


@pytest.fixture
async def fleet(request: pytest.FixtureRequest, room: str) -> AsyncIterator[Fleet]:
    """Workers of one kind on one stage. Afterwards: every agent was let go of once, and none during its turn."""
    kind, stage, *broken = request.param
    source: Any = None
    if stage == "fake":
        source = client = fake()
    else:
        source = request.getfixturevalue("server").url
        client = redis.Redis.from_url(source)
    company = request.getfixturevalue("company") if stage == "processes" else None
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(32))
    fleet = Fleet(kind, stage, source, client, room, company, *broken)
    try:
        yield fleet
    finally:
        await fleet.close()
        client.close()


@pytest.fixture
def own_server() -> Iterator[PrivateRedis]:
    """A redis-server that a test may kill, or turn against its workers."""
    with PrivateRedis() as running:
        yield running
