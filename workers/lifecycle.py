"""How an agent is released, closed, interrupted, stamped and snapshotted."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from typing import Any


class Lifecycle:
    """Override what your agents do differently. Each default acts only on what the agent has.

    `release`, `close`, `keep`, `interrupt` and `end_session` run on a background thread, never on the path of a turn;
    for an `AsyncWorker` they may be coroutines, which run on its event loop. `last_activity` and `snapshot` are called
    at the end of a turn and should be quick.
    """

    def keep(self, agent: Any) -> Any:
        """Put what must outlive the agent (memory, notes) where it belongs, before it is released or closed."""
        return _call(agent, "commit_memory_session")

    def release(self, agent: Any) -> Any:
        """Softly: the session may go on. Closes LLM clients; leaves its processes, sandbox and browser alone."""
        return _call(agent, "release_clients") if hasattr(agent, "release_clients") else _call(agent, "close")

    def close(self, agent: Any) -> Any:
        """Hard: the session is over, and its task state with it."""
        results = []
        try:
            results.append(_call(agent, "shutdown_memory_provider"))
        finally:
            results.append(_call(agent, "close" if hasattr(agent, "close") else "release_clients"))
        coroutines = [result for result in results if inspect.isawaitable(result)]
        return _one_after_the_other(coroutines) if coroutines else None

    def interrupt(self, agent: Any) -> Any:
        """Ask the running turn to stop soon."""
        return _call(agent, "interrupt")

    def end_session(self, session: str) -> Any:
        """The session is over and nobody holds an agent for it. Runs once in the whole fleet."""

    def last_activity(self, agent: Any) -> float | None:
        """When the agent was last active; None: idle time does not count for it, and it is never swept as idle."""
        return getattr(agent, "_last_activity_ts", None)

    def snapshot(self, agent: Any) -> Any:
        """Plain data from which `build` can make this agent come back warm; None: nothing."""
        return agent.snapshot() if hasattr(agent, "snapshot") else None


def _call(agent: Any, method: str) -> Any:
    """Call a method the agent may not have. What it returns matters when it is a coroutine: somebody awaits it."""
    found = getattr(agent, method, None)
    return found() if callable(found) else None


async def _one_after_the_other(awaitables: list[Awaitable[Any]]) -> None:
    """All of them, whatever goes wrong; then the first error."""
    errors = []
    for awaitable in awaitables:
        try:
            await awaitable
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
