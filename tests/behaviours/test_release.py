"""Soft release and hard close: B32–B36, with real child processes as a session's background processes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.fleet import CONFIG, Fleet, until

from coordinator import Limits

LIMITS = Limits(room=1, idle_ttl=600)


async def _cap(fleet: Fleet, one: Any, two: Any) -> None:
    await fleet.say(two, "telegram:other")


async def _idle(fleet: Fleet, one: Any, two: Any) -> None:
    fleet.clock.advance(1000)
    assert await two.sweep() == 1


async def _signature(fleet: Fleet, one: Any, two: Any) -> None:
    await fleet.say(one, "telegram:1", config=CONFIG | {"model": "opus"})


async def _move(fleet: Fleet, one: Any, two: Any) -> None:
    await fleet.say(two, "telegram:1")


async def _drain(fleet: Fleet, one: Any, two: Any) -> None:
    await one.close()


async def _operator(fleet: Fleet, one: Any, two: Any) -> None:
    assert fleet.hall.evict("telegram:1")


Release = Callable[[Fleet, Any, Any], Awaitable[None]]
#: Everything that lets go of an agent while its session goes on.
soft = pytest.mark.parametrize("release", [_cap, _idle, _signature, _move, _drain, _operator])


async def _released(fleet: Fleet) -> None:
    async def first_is_gone() -> bool:
        return (await fleet.records("telegram:1"))[0].gone > 0

    await until(first_is_gone, what="the release")


@soft
async def test_b32_soft_release_kills_no_processes(fleet: Fleet, release: Release) -> None:
    """B32: soft release never kills the session's background processes."""
    one, two = await fleet.workers(2, limits=LIMITS)
    async with fleet.turn(one, "telegram:1") as play:
        process = play.agent.tasks.start_process()
    await release(fleet, one, two)
    await _released(fleet)
    assert process.poll() is None
    assert (await fleet.records("telegram:1"))[0].released == 1


@soft
async def test_b33_soft_release_leaves_sandbox_and_browser(fleet: Fleet, release: Release) -> None:
    """B33: soft release never tears down its terminal sandbox or its browser."""
    one, two = await fleet.workers(2, limits=LIMITS)
    async with fleet.turn(one, "telegram:1") as play:
        tasks = play.agent.tasks
    await release(fleet, one, two)
    await _released(fleet)
    assert tasks.terminal_open
    assert tasks.browser_open
    assert fleet.backstage.of("telegram:1") is tasks


async def test_b34_soft_release_closes_and_drops_the_client(fleet: Fleet) -> None:
    """B34: soft release closes the LLM client, and drops the reference."""
    one, two = await fleet.workers(2, limits=LIMITS)
    async with fleet.turn(one, "telegram:1") as play:
        client, agent = play.agent.client, weakref.ref(play.agent)
        await play.say()
    del play
    assert agent() is not None
    assert agent().client is client
    assert not client.closed
    await fleet.say(two, "telegram:2")
    record = await fleet.goes("telegram:1")
    assert client.closed
    assert record.calls == ["keep", "release"]
    await until(lambda: gc.collect() >= 0 and agent() is None, what="the end of every reference to the agent")


@pytest.mark.parametrize("reason", ["reset", "idle"])
@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_b35_hard_close_tears_down_the_task_state(fleet: Fleet, reason: str, where: str) -> None:
    """B35: hard close (session reset or expiry) tears down the session's task state; soft release does not."""
    one, two = await fleet.workers(2)
    async with fleet.turn(one, "telegram:1") as play, fleet.turn(one, "telegram:2") as other:
        tasks, process = play.agent.tasks, play.agent.tasks.start_process()
        others, left_alone = other.agent.tasks, other.agent.tasks.start_process()
    assert await (one if where == "here" else two).evict("telegram:1", "hard", reason)
    assert await one.evict("telegram:2", "soft", reason)
    record = await fleet.goes("telegram:1", "close")
    await fleet.goes("telegram:2", "release")
    assert record.calls == ["keep", "shutdown_memory_provider", "close"]
    assert (tasks.terminal_open, tasks.browser_open, process.poll()) == (False, False, -9)
    assert (others.terminal_open, others.browser_open, left_alone.poll()) == (True, True, None)
    async with fleet.turn(two, "telegram:1") as play:
        assert play.agent.tasks is not tasks
        assert await play.say() == ["hello"], "nothing of the old session is left, not even its snapshot"


@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_b36_after_an_idle_eviction_the_task_state_is_inherited(fleet: Fleet, where: str) -> None:
    """B36: after an idle eviction, the agent rebuilt for the session inherits its task state and has a fresh client."""
    one, two = await fleet.workers(2, limits=Limits(idle_ttl=600))
    async with fleet.turn(one, "telegram:1") as play:
        tasks, client, process = play.agent.tasks, play.agent.client, play.agent.tasks.start_process()
        await play.say("before")
    fleet.clock.advance(1000)
    assert await two.sweep() == 1
    await fleet.goes("telegram:1")
    async with fleet.turn(one if where == "here" else two, "telegram:1") as play:
        assert play.fresh
        assert play.agent.tasks is tasks
        assert play.agent.tasks.processes == [process]
        assert process.poll() is None
        assert play.agent.client is not client
        assert (client.closed, play.agent.client.closed) == (True, False)
        assert await play.say("after") == ["before", "after"]
