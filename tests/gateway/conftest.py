"""Gateway replicas as processes on a real Redis; tests talk HTTP to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.replicas import Street

from coordinator.private_redis import PrivateRedis


@pytest.fixture
def street(server: PrivateRedis, room: str, tmp_path: Path) -> Iterator[Street]:
    """No replica yet: `street.open(3)`."""
    made = Street(server.url, room, tmp_path)
    yield made
    made.close()
