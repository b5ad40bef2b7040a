"""The way to Redis: one flow, two drivers.

Everything that talks to Redis is written once, as `async def`, on top of a `Link`. Over an `AsyncLink` it is awaited;
over a `SyncLink` nothing in it ever suspends, and `run` drives it to its end in one step.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import redis
import redis.asyncio
from redis.exceptions import NoScriptError, RedisError
from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random_exponential

from coordinator.clients import async_client, endpoint, sync_client
from coordinator.errors import GreenroomError, is_passing, translate
from coordinator.keys import Keys
from coordinator.scripts import Script, scripts
from coordinator.settings import Settings

T = TypeVar("T")


def run(flow: Coroutine[Any, Any, T]) -> T:
    """Drive a flow over a `SyncLink`: its calls block instead of suspending."""
    try:
        flow.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    flow.close()
    raise RuntimeError("a flow over a sync link tried to wait for an event loop")


class Link(ABC):
    """Calls scripts and reads keys. Retries what is safe to retry: every script is, by its turn id or by nature."""

    _client: Any

    def __init__(self, settings: Settings, library: Mapping[str, Script] | None = None) -> None:
        self.keys = Keys(settings.room)
        self._library = library or scripts()
        self._retry_for = settings.retry_for
        #: How long a turn id stays spent: longer than any retry of its begin or end can take.
        self.spent_ms = int(max(30.0, 2 * (settings.retry_for + settings.socket_timeout)) * 1000)

    async def call(self, name: str, *argv: Any, retry: bool = True) -> Any:
        """Run a script. The first attempt goes straight through; only a failure pays for the retry machinery."""
        script = self._library[name]
        try:
            return await self._evaluate(script, argv)
        except (RedisError, OSError) as error:
            if not (retry and is_passing(error)):
                raise self._translated(error) from error
        return await self._again(self._evaluate, script, argv)

    async def read(self, *command: Any) -> Any:
        """One command that only reads."""
        return (await self.read_many([command]))[0]

    async def read_many(self, commands: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Several reads in one round trip."""
        batch = list(commands)
        if not batch:
            return []
        try:
            return await self._pipeline(batch)
        except (RedisError, OSError) as error:
            if not is_passing(error):
                raise self._translated(error) from error
        answers: list[Any] = await self._again(self._pipeline, batch)
        return answers

    async def _evaluate(self, script: Script, argv: tuple[Any, ...]) -> Any:
        try:
            return await self._send("EVALSHA", script.sha, 1, self.keys.prefix, *argv)
        except NoScriptError:
            return await self._send("EVAL", script.source, 1, self.keys.prefix, *argv)

    async def _again(self, attempt: Any, *arguments: Any) -> Any:
        """Retry with jitter for `retry_for` seconds, then say that Redis is not available."""
        policy = AsyncRetrying(
            stop=stop_after_delay(self._retry_for),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            retry=retry_if_exception(lambda error: isinstance(error, Exception) and is_passing(error)),
            sleep=self._pause,
            reraise=True,
        )
        await self._pause(0.01)
        try:
            return await policy(attempt, *arguments)
        except (RedisError, OSError) as error:
            raise self._translated(error) from error

    def _translated(self, error: Exception) -> GreenroomError:
        return translate(error, endpoint(self._client))

    @abstractmethod
    async def disconnect(self) -> None: ...

    @abstractmethod
    async def _send(self, *command: Any) -> Any: ...

    @abstractmethod
    async def _pipeline(self, commands: list[tuple[Any, ...]]) -> list[Any]: ...

    @abstractmethod
    async def _pause(self, seconds: float) -> None: ...


class SyncLink(Link):
    """Blocks the calling thread. May be shared by threads."""

    _client: redis.Redis

    def __init__(
        self, settings: Settings, library: Mapping[str, Script] | None = None, timeout: float | None = None
    ) -> None:
        super().__init__(settings, library)
        self._client = sync_client(
            settings.redis, timeout=timeout or settings.socket_timeout, connections=settings.connections
        )

    async def disconnect(self) -> None:
        self._client.close()
        self._client.connection_pool.disconnect()

    async def _send(self, *command: Any) -> Any:
        return self._client.execute_command(*command)

    async def _pipeline(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        with self._client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            return pipe.execute()

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - this is the driver that blocks


class AsyncLink(Link):
    """Suspends the calling task. Belongs to one event loop."""

    _client: redis.asyncio.Redis

    def __init__(self, settings: Settings, library: Mapping[str, Script] | None = None) -> None:
        super().__init__(settings, library)
        self._client = async_client(settings.redis, timeout=settings.socket_timeout, connections=settings.connections)

    async def disconnect(self) -> None:
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    async def _send(self, *command: Any) -> Any:
        return await self._client.execute_command(*command)

    async def _pipeline(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            return await pipe.execute()

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
