"""How an agent is asked: its `run` may return text or an iterator of pieces, or the async form of either.

Whatever is not a coroutine runs in a thread of the gateway's own, start to end, so that no event loop is ever blocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor
from typing import Any

from workers.aio import whole
from workers.gateway.problems import AgentFailed, Interrupted, ReplyTooLong


class Performance:
    """One call of an agent's `run`. `say` is called on the event loop, with each piece; `limit`: how many characters it
    may say."""

    def __init__(self, say: Callable[[str], None], threads: Executor, limit: int) -> None:
        self._heard, self._threads, self._left = say, threads, limit
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self.waits = True  #: for a thread: nothing was asked of the agent yet

    async def run(self, agent: Any, message: str, offered: dict[str, Any]) -> None:
        """Until the agent has said all, also when the caller is cancelled: it must not be released while it runs.
        AgentFailed if it raised, Interrupted if it was stopped."""
        self._task = asyncio.create_task(self._run(agent, message, offered))
        try:
            await whole(self._task, self.stop)
        except asyncio.CancelledError as error:
            if self._caller_cancelled():
                raise
            if not self._stopped:
                raise AgentFailed(error) from error
        except Interrupted:
            pass
        else:
            if self._left >= 0:
                return
        raise AgentFailed(ReplyTooLong()) if self._left < 0 else Interrupted()

    def stop(self) -> None:
        """Take no more pieces. May be called from any thread."""
        self._stopped = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task:
            self._task.cancel()

    def _say(self, piece: str) -> None:
        self._left -= len(piece)
        if self._left >= 0:
            self._heard(piece)
        else:
            self.stop()

    @staticmethod
    def _caller_cancelled() -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    async def _run(self, agent: Any, message: str, offered: dict[str, Any]) -> None:
        try:
            run = agent.run
            options = _accepted(run, offered)
            if inspect.iscoroutinefunction(run) or inspect.isasyncgenfunction(run):
                self.waits = False
                result = run(message, **options)
            else:
                result = await self._threaded(run, message, options)
            if inspect.isawaitable(result):
                result = await result
            if isinstance(result, str):
                self._say(result)
            elif hasattr(result, "__aiter__"):
                await self._pieces(result)
            elif result is not None:
                raise TypeError(f"run() gave a {type(result).__name__} and not text, or an iterator of text")
        except (Interrupted, AgentFailed, asyncio.CancelledError):
            raise
        except BaseException as error:  # a tool that calls sys.exit() ends its turn, and not the replica
            raise AgentFailed(error) from error

    async def _threaded(self, run: Callable[..., Any], message: str, options: dict[str, Any]) -> Any:
        """A thread cannot be cancelled: it sees by itself that it is to stop, and is waited for."""
        context = contextvars.copy_context()
        job = self._threads.submit(context.run, self._in_thread, run, message, options)
        with contextlib.suppress(asyncio.CancelledError):
            await whole(asyncio.wrap_future(job), job.cancel)  # what waits for a thread is cancelled
        if job.cancelled():
            raise Interrupted
        result = job.result()
        if self._stopped and not isinstance(result, str):
            if inspect.iscoroutine(result):
                result.close()
            raise Interrupted
        return result

    async def _pieces(self, pieces: AsyncIterator[Any]) -> None:
        try:
            async for piece in pieces:
                self._say(_text(piece))
        finally:
            if close := getattr(pieces, "aclose", None):
                await close()

    def _in_thread(self, run: Callable[..., Any], message: str, options: dict[str, Any]) -> Any:
        """Call a plain `run`, and take what it yields, here. What has to be awaited is handed back."""
        try:
            return self._called(run, message, options)
        except Interrupted:
            raise
        except BaseException as error:  # here, because no Future brings a StopIteration back
            raise AgentFailed(error) from error

    def _called(self, run: Callable[..., Any], message: str, options: dict[str, Any]) -> Any:
        self.waits = False
        result = run(message, **options)
        if isinstance(result, str) or inspect.isawaitable(result) or not isinstance(result, Iterable):
            return result
        pieces = iter(result)
        try:
            for piece in pieces:
                if self._stopped:
                    raise Interrupted
                self._loop.call_soon_threadsafe(self._say, _text(piece))
        finally:
            if close := getattr(pieces, "close", None):
                close()
        return None


def _text(piece: Any) -> str:
    if not isinstance(piece, str):
        raise TypeError(f"run() yielded a {type(piece).__name__} and not text")
    return piece


def _accepted(run: Callable[..., Any], offered: dict[str, Any]) -> dict[str, Any]:
    """Of what is offered, what `run` takes."""
    try:
        parameters = inspect.signature(run).parameters.values()
    except (TypeError, ValueError):  # it does not say
        return {}
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return offered
    named = {one.name for one in list(parameters)[1:] if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}
    return {name: value for name, value in offered.items() if name in named}
