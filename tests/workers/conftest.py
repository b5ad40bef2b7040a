"""Workers to play with: quick leases, a plain agent, everything closed at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.plain import Agent

from coordinator import Coordinator
from workers import Worker


@pytest.fixture
def start(source: Any, room: str) -> Iterator[Callable[..., Worker]]:
    """Start a worker in this test's room; it is closed at the end."""
    with contextlib.ExitStack() as stack:

        def start(build: Any = Agent, redis: Any = None, **settings: Any) -> Worker:
            settings = {"lease": 3.0, "drain_for": 2.0, "release_limit": 5.0, **settings}
            return stack.enter_context(Worker(build, redis=redis or source, room=room, **settings))

        yield start


@pytest.fixture
def look(source: Any, room: str) -> Iterator[Coordinator]:
    """The room from outside."""
    with Coordinator(source, room) as coordinator:
        yield coordinator
