"""The way to Redis: which clients are made, what is retried, and what its errors become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
from redis import exceptions as redis_errors

from coordinator import Coordinator, CoordinatorUnavailable, GreenroomError, LeaseLost, Limits, WorkerDraining
from coordinator import operations as ops
from coordinator.clients import async_client, endpoint, sync_client
from coordinator.errors import SchemaMismatch, SessionBusy, SessionElsewhere, UnknownWorker, is_passing, translate
from coordinator.link import AsyncLink, Link, SyncLink, run
from coordinator.private_redis import PrivateRedis
from coordinator.settings import Settings


def register(link: Link, worker: str = "w") -> None:
    run(ops.register(link, worker, 3000, epoch="", floor=0, address="", host="", pid=1, state="up", instance="1"))


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
async def test_a_client_is_only_a_description(server: PrivateRedis, kind: Any) -> None:
    given = kind.from_url(server.url + "/3", decode_responses=True, socket_timeout=77)
    ours = sync_client(given, timeout=2, connections=3)
    where = ours.connection_pool.connection_kwargs
    assert (where["port"], where["db"], where["socket_timeout"]) == (server.port, 3, 2)
    assert ours.set("greenroom-test", "x")
    assert ours.get("greenroom-test") == b"x"
    theirs = async_client(given, timeout=2, connections=3)
    assert await theirs.get("greenroom-test") == b"x"
    await theirs.aclose()
    await theirs.connection_pool.disconnect()
    ours.close()


async def test_fakeredis_clients_meet_on_one_server() -> None:
    for given in (fakeredis.FakeRedis(), fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer())):
        sync_client(given, timeout=1, connections=1).set("a", 1)
        assert await async_client(given, timeout=1, connections=1).get("a") == b"1"


@pytest.mark.parametrize("junk", [object(), 7, redis.Redis])
def test_what_is_not_a_redis_is_refused(junk: Any) -> None:
    with pytest.raises(ValueError, match="redis must be a URL or a redis-py client"):
        Coordinator(junk)


@pytest.mark.parametrize("url", ["redis://localhost?foo=bar", "http://localhost", "localhost:6379"])
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="Redis URL"):
        Coordinator(url)
    with pytest.raises(ValueError, match="Redis URL"):
        AsyncLink(Settings(redis=url))


def test_a_flow_over_a_sync_link_cannot_suspend() -> None:
    import asyncio

    with pytest.raises(RuntimeError, match="tried to wait"):
        run(asyncio.sleep(0))


def test_the_base_of_links_does_nothing_by_itself(source: Any) -> None:
    with pytest.raises(TypeError, match="abstract"):
        Link(Settings())  # type: ignore[abstract]
    link = SyncLink(Settings(redis=source))
    assert run(link.read_many([])) == []
    run(link.disconnect())


def test_scripts_that_redis_forgot_are_sent_again(server: PrivateRedis, room: str) -> None:
    with redis.Redis.from_url(server.url) as client:
        link = SyncLink(Settings(redis=server.url, room=room))
        for _ in range(3):
            client.script_flush()
            register(link)
        run(link.disconnect())


async def test_redis_away_is_tried_again_for_a_while_and_then_said(room: str) -> None:
    settings = Settings(redis="redis://127.0.0.1:1", room=room, retry_for=0.2)
    link, async_link = SyncLink(settings), AsyncLink(settings)
    with pytest.raises(CoordinatorUnavailable, match="cannot be reached"):
        register(link)
    with pytest.raises(CoordinatorUnavailable):
        run(link.read("GET", "x"))
    with pytest.raises(CoordinatorUnavailable):
        await async_link.read("GET", "x")
    with pytest.raises(CoordinatorUnavailable):
        await async_link.call("interrupt", "s")
    await async_link.disconnect()


def test_a_server_that_comes_back_is_found(room: str) -> None:
    import threading

    with PrivateRedis() as server:
        link = SyncLink(Settings(redis=server.url, room=room, retry_for=10))
        register(link)
        server.kill()
        back = threading.Timer(0.5, server.start)
        back.start()
        assert run(link.read("EXISTS", link.keys.workers)) == 0
        back.join()
        server.kill()
        back = threading.Timer(0.5, server.start)
        back.start()
        register(link)
        back.join()
        run(link.disconnect())


def test_wrong_password_and_missing_rights_are_said(server: PrivateRedis, room: str) -> None:
    with redis.Redis.from_url(server.url) as admin:
        admin.execute_command("ACL", "SETUSER", "weak", "on", ">open-sesame", "~*", "+get")
        for password in ("open-sesame", "open-barley"):
            url = f"redis://weak:{password}@127.0.0.1:{server.port}"
            link = SyncLink(Settings(redis=url, room=room, retry_for=5))
            with pytest.raises(CoordinatorUnavailable, match="refuses this user") as raised:
                register(link)
            assert password not in str(raised.value)
            run(link.disconnect())
        admin.execute_command("ACL", "DELUSER", "weak")


def test_errors_become_ours() -> None:
    table: list[tuple[Exception, type[GreenroomError], str]] = [
        (redis_errors.ResponseError("LOST the turn"), LeaseLost, "not current"),
        (redis_errors.ResponseError("ENDED x"), LeaseLost, "over"),
        (redis_errors.ResponseError("DRAINING x"), WorkerDraining, "draining"),
        (redis_errors.ResponseError("UNKNOWNWORKER"), UnknownWorker, "join"),
        (redis_errors.ResponseError("SCHEMA x"), SchemaMismatch, "version"),
        (redis_errors.OutOfMemoryError("command not allowed"), CoordinatorUnavailable, "out of memory"),
        (redis_errors.AuthenticationError("WRONGPASS x"), CoordinatorUnavailable, "refuses this user"),
        (redis_errors.NoPermissionError("no"), CoordinatorUnavailable, "refuses this user"),
        (redis_errors.ResponseError("WRONGTYPE secret-session"), CoordinatorUnavailable, r"\(WRONGTYPE\)"),
        (redis_errors.ResponseError("something odd"), CoordinatorUnavailable, r"\(ERR\)"),
        (redis_errors.ConnectionError("secret"), CoordinatorUnavailable, r"cannot be reached \(ConnectionError\)"),
    ]
    for error, kind, words in table:
        ours = translate(error)
        assert type(ours) is kind
        with pytest.raises(kind, match=words):
            raise ours
        assert "secret" not in str(ours)


@pytest.mark.parametrize(("error", "passing"), [
    (redis_errors.ConnectionError("x"), True),
    (redis_errors.TimeoutError("x"), True),
    (OSError("x"), True),
    (redis_errors.BusyLoadingError("x"), True),
    (redis_errors.ReadOnlyError("x"), True),
    (redis_errors.ResponseError("BUSY Redis is busy running a script"), True),
    (redis_errors.ResponseError("TRYAGAIN x"), True),
    (redis_errors.TryAgainError("x"), True),
    (redis_errors.ClusterDownError("x"), True),
    (redis_errors.AuthenticationError("x"), False),
    (redis_errors.OutOfMemoryError("x"), False),
    (redis_errors.ResponseError("LOST x"), False),
    (ValueError("x"), False),
])  # fmt: skip
def test_what_is_worth_another_try(error: Exception, passing: bool) -> None:
    assert is_passing(error) is passing


def test_what_errors_carry() -> None:
    busy = SessionBusy("s", "w", 1.5, 2.0)
    assert (busy.session, busy.worker, busy.left, busy.running) == ("s", "w", 1.5, 2.0)
    assert str(busy) == "session 's' is busy: a turn on w, running for 2.0 s"
    assert "waiting in line" in str(SessionBusy("s"))
    assert str(SessionElsewhere("w", "http://w")) == "the agent is warm on w at http://w"
    assert str(SessionElsewhere("w", "")) == "the agent is warm on w"


def test_another_schema_is_refused(source: Any, room: str, client: redis.Redis) -> None:
    client.hset(f"greenroom:{{{room}}}:settings", "schema", "0")
    link = SyncLink(Settings(redis=source, room=room))
    with pytest.raises(SchemaMismatch):
        register(link)
    with pytest.raises(SchemaMismatch):
        run(ops.beat(link, "w", 3000, "1", []))
    assert client.keys(f"greenroom:{{{room}}}:*") == [f"greenroom:{{{room}}}:settings".encode()]


def test_an_argument_that_is_no_number_writes_nothing(source: Any, room: str, client: redis.Redis) -> None:
    link = SyncLink(Settings(redis=source, room=room))
    for script, arguments in (("begin", ["s", "w", "t", "x", 0, "x", 0, "", 0, 0]), ("register", ["w", -1, 1, "", 0])):
        with pytest.raises(CoordinatorUnavailable, match="BADARG"):
            run(link.call(script, *arguments))
    assert client.keys(f"greenroom:{{{room}}}:*") == []


def test_a_unix_socket_will_do(room: str, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with PrivateRedis("--unixsocket", str(path)), redis.Redis(unix_socket_path=str(path)) as client:
        for source in (f"unix://{path}", client):
            with Coordinator(source, room) as coordinator:
                coordinator.set_limits(Limits(room=7))
                assert coordinator.limits() == Limits(room=7)


def test_an_endpoint_names_no_user_and_no_password() -> None:
    for source, where in (
        ("redis://user:secret@redis.example:6380/2", "redis.example:6380"),
        ("rediss://:secret@redis.example", "redis.example:6379"),
        ("unix:///run/redis.sock?password=secret", "/run/redis.sock"),
    ):
        assert endpoint(sync_client(source, timeout=1, connections=1)) == where
