"""Redis clients made from a description: a URL, or somebody else's client.

The product never uses a caller's client: retries, decoding and timeouts differ, and a worker needs a sync client for
its own threads beside the async one. Every client here keeps bytes, speaks RESP2 (one shape of replies on Redis 6.2, 7
and 8), retries nothing by itself, and waits for a free connection instead of raising. Make them after fork.
"""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

_KINDS = {
    "Connection": (redis.Connection, redis.asyncio.Connection),
    "SSLConnection": (redis.SSLConnection, redis.asyncio.SSLConnection),
    "UnixDomainSocketConnection": (redis.UnixDomainSocketConnection, redis.asyncio.UnixDomainSocketConnection),
}
#: What is taken over from a client: where it connects to and as whom. How it does so is ours.
_WHERE = ("host", "port", "db", "path", "username", "password", "credential_provider")


def sync_client(source: Any, *, timeout: float, connections: int) -> redis.Redis:
    """A client for threads; each call has its own connection while it runs."""
    if fake := _fake(source):
        from fakeredis import FakeRedis

        client: redis.Redis = FakeRedis(**fake, protocol=2)
        return client
    pool = redis.BlockingConnectionPool
    options = _options(timeout, connections) | {"retry": Retry(NoBackoff(), 0)}
    return redis.Redis(connection_pool=_pool(pool, 0, source, options))


def async_client(source: Any, *, timeout: float, connections: int) -> redis.asyncio.Redis:
    """The same for an event loop."""
    if fake := _fake(source):
        from fakeredis import FakeAsyncRedis

        return FakeAsyncRedis(**fake, protocol=2)
    pool = redis.asyncio.BlockingConnectionPool
    options = _options(timeout, connections) | {"retry": AsyncRetry(NoBackoff(), 0)}
    return redis.asyncio.Redis(connection_pool=_pool(pool, 1, source, options))


def endpoint(client: Any) -> str:
    """Where a client connects to; no user, no password."""
    at = client.connection_pool.connection_kwargs
    return str(at.get("path") or f"{at.get('host', 'localhost')}:{at.get('port', 6379)}")


def _pool(pool: Any, flavour: int, source: Any, options: dict[str, Any]) -> Any:
    """A pool for a URL or for a client's description. What cannot be meant is refused here, not at the first call."""
    kind, where = ("", {}) if isinstance(source, str) else _described(source)
    if kind.startswith("Unix") or (isinstance(source, str) and source.startswith("unix:")):
        options = {name: value for name, value in options.items() if name != "socket_keepalive"}
    if not isinstance(source, str):
        return pool(connection_class=_KINDS[kind][flavour], **where, **options)
    try:
        made = pool.from_url(source, **options)
        made.connection_class(**made.connection_kwargs)  # connects to nothing yet
    except (TypeError, ValueError):  # their text may hold a piece of the password
        raise ValueError("the Redis URL cannot be used: it must be like redis://[user:password@]host:port/db") from None
    return made


def _options(timeout: float, connections: int) -> dict[str, Any]:
    return {
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "socket_keepalive": True,
        "timeout": timeout,
        "max_connections": connections,
        "decode_responses": False,
        "protocol": 2,
    }


def _described(client: Any) -> tuple[str, dict[str, Any]]:
    """What kind of connection a client has, and to where."""
    pool = getattr(client, "connection_pool", None)
    kind = getattr(getattr(pool, "connection_class", None), "__name__", "")
    if pool is None or kind not in _KINDS:
        raise ValueError(f"redis must be a URL or a redis-py client, not a {type(client).__name__}")
    given = pool.connection_kwargs
    return kind, {name: value for name, value in given.items() if name in _WHERE or name.startswith("ssl_")}


def _fake(client: Any) -> dict[str, Any]:
    """How to reach the server behind a fakeredis client, so that ours is on the same one; {} for any other client."""
    if not type(client).__module__.startswith("fakeredis"):
        return {}
    given = client.connection_pool.connection_kwargs
    return {name: given[name] for name in ("server", "host", "port", "db", "version") if given.get(name) is not None}
