"""Fixtures: every test that can run on fakeredis and on a real redis-server does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from support import keys, no_server

from coordinator.private_redis import PrivateRedis, find_server

_rooms = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[PrivateRedis]:
    """A real redis-server for the whole run."""
    if not find_server():
        no_server()
    with PrivateRedis() as running, redis.Redis.from_url(running.url) as client:
        keys.lasting.append(client)
        yield running
        keys.lasting.clear()


@pytest.fixture(autouse=True)
def no_key_without_an_owner() -> Iterator[None]:
    """Fails a test that leaves a key in Redis that lua/README.md does not list, or that lasts and should not."""
    keys.watched.clear()
    yield
    left = [stray for client in [*keys.watched, *keys.lasting] for stray in keys.strays(client)]
    for client in keys.lasting:
        client.flushall()
    assert left == []


@pytest.fixture(params=["fake", "real"])
def backend(request: pytest.FixtureRequest) -> str:
    """On what the test runs."""
    return str(request.param)


@pytest.fixture
def source(backend: str, request: pytest.FixtureRequest) -> Any:
    """What a Worker or Coordinator gets as `redis`: a URL of the real server, or a fakeredis client."""
    if backend == "real":
        return request.getfixturevalue("server").url
    return keys.fake()


@pytest.fixture
def client(source: Any) -> Iterator[redis.Redis]:
    """A plain client to look into the same Redis."""
    if isinstance(source, str):
        with redis.Redis.from_url(source) as plain:
            yield plain
    else:
        yield source


@pytest.fixture
def room() -> str:
    """A room that no other test uses."""
    return f"room-{next(_rooms)}"
