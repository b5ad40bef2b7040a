"""Bounded growth: B15–B21. The cap is the room's: what one worker adds, another one may have to give up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from support.fleet import CONFIG, Fleet, until

from coordinator import Limits
from coordinator import operations as ops
from coordinator.answers import Ended

pytestmark = pytest.mark.processes


async def test_b15_past_the_cap_the_least_recently_used_goes(fleet: Fleet) -> None:
    """B15: going past the cap evicts the least recently used agent, on whichever worker it is."""
    one, two = await fleet.workers(2, limits=Limits(room=2))
    await fleet.say(one, "telegram:1")
    await fleet.say(two, "telegram:2")
    assert fleet.evictions == 0
    await fleet.say(two, "telegram:3")
    assert fleet.order() == ["telegram:2", "telegram:3"]
    await fleet.goes("telegram:1")
    assert await fleet.untouched("telegram:2", "telegram:3")
    assert (await one.resident(), await two.resident()) == ([], ["telegram:2", "telegram:3"])
    assert fleet.count("evictions:lru") == fleet.evictions == 1


async def test_b15_a_workers_own_cap(fleet: Fleet) -> None:
    """B15: the same with a worker's own cap, which is no business of the others."""
    one, two = await fleet.workers(2, limits=Limits(worker=2))
    await fleet.say(two, "telegram:1")
    for number in (2, 3, 4):
        await fleet.say(one, f"telegram:{number}")
    await fleet.goes("telegram:2")
    assert fleet.order() == ["telegram:1", "telegram:3", "telegram:4"]
    assert await fleet.untouched("telegram:1", "telegram:3", "telegram:4")


async def test_b16_what_was_just_used_stays(fleet: Fleet) -> None:
    """B16: an entry that was just used is not the oldest any more: the next one goes instead."""
    one, two = await fleet.workers(2, limits=Limits(room=3))
    for seat, name in ((one, "telegram:1"), (two, "telegram:2"), (one, "telegram:3")):
        await fleet.say(seat, name)
    assert not (await fleet.say(one, "telegram:1")).fresh
    await fleet.say(one, "telegram:4")
    await fleet.goes("telegram:2")
    assert fleet.order() == ["telegram:3", "telegram:1", "telegram:4"]
    assert await fleet.untouched("telegram:1", "telegram:3", "telegram:4")


async def test_b17_softly_in_the_background(fleet: Fleet) -> None:
    """B17: eviction releases softly, in the background, never on the caller's path. The newcomer is untouched."""
    one, two = await fleet.workers(2, limits=Limits(room=2))
    await fleet.say(one, "telegram:1")
    await fleet.say(two, "telegram:2")
    await one.shut("release:telegram:1")
    await two.shut("release:telegram:2")
    await fleet.say(one, "telegram:3")  # its own worker has to release
    await fleet.say(one, "telegram:4")  # another worker has to

    async def both_began() -> bool:
        return all([(await fleet.record(name)).calls == ["keep", "release"] for name in ("telegram:1", "telegram:2")])

    await until(both_began, what="the releases")
    assert fleet.order() == ["telegram:3", "telegram:4"], "both turns came through while the releases hang"
    assert not (await fleet.say(one, "telegram:3")).fresh
    assert [(await fleet.record(name)).gone for name in ("telegram:1", "telegram:2")] == [0, 0]
    await fleet.each(lambda seat: seat.unlock())
    for name in ("telegram:1", "telegram:2"):
        record = await fleet.goes(name)
        assert set(record.threads) == {"greenroom-release"}
    assert await fleet.untouched("telegram:3", "telegram:4")


@pytest.mark.stages("fake", "real")
async def test_b17_an_eviction_right_behind_the_turns_end(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """B17: also when its message arrives before the worker has read the answer to the turn's end."""
    one, two = await fleet.workers(2)
    loop, end = asyncio.get_running_loop(), ops.end

    async def evict() -> None:
        assert await two.evict("telegram:1")
        await one.settle()

    async def end_then_evict(*arguments: Any, **named: Any) -> Ended:
        ended = await end(*arguments, **named)
        if fleet.kind == "async":
            await evict()
        else:  # a flow of a sync worker cannot wait for the loop, but its thread can
            await_there = asyncio.run_coroutine_threadsafe(evict(), loop)
            await_there.result(20)
        return ended

    with monkeypatch.context() as patched:
        patched.setattr(ops, "end", end_then_evict)
        await fleet.say(one, "telegram:1")
    assert fleet.order() == []
    await fleet.settle()
    assert await one.resident() == []
    await fleet.goes("telegram:1")


async def test_b18_the_sweep_takes_what_is_idle(fleet: Fleet) -> None:
    """B18: the idle sweep evicts what has been idle longer than the idle TTL, keeps the rest, and says how many."""
    one, two = await fleet.workers(2, limits=Limits(idle_ttl=600))
    for seat, name in ((one, "telegram:1"), (two, "telegram:2"), (one, "telegram:3")):
        await fleet.say(seat, name)
    fleet.clock.advance(500)
    assert await two.sweep() == 0
    await fleet.say(one, "telegram:3")
    await fleet.say(two, "telegram:4")
    fleet.clock.advance(200)
    assert await two.sweep() == 2
    for name in ("telegram:1", "telegram:2"):
        await fleet.goes(name)
    assert fleet.order() == ["telegram:3", "telegram:4"]
    assert await fleet.untouched("telegram:3", "telegram:4")
    assert await one.sweep() == 0
    assert fleet.count("evictions:idle") == fleet.evictions == 2


async def test_b18_the_room_s_ttl_for_an_operator(fleet: Fleet) -> None:
    """B18: the same from the command line, with the TTL that was set for the room."""
    one, two = await fleet.workers(2)
    await fleet.say(one, "telegram:1")
    fleet.clock.advance(700)
    await fleet.say(two, "telegram:2")
    assert fleet.hall.sweep() == 0, "no TTL is set"
    fleet.hall.set_limits(Limits(idle_ttl=600))
    assert fleet.hall.sweep() == 1
    await fleet.goes("telegram:1")
    assert await fleet.untouched("telegram:2")


async def test_b19_no_timestamp_no_sweep(fleet: Fleet) -> None:
    """B19: an agent with no activity timestamp is left alone by the idle sweep."""
    one, two = await fleet.workers(2, limits=Limits(idle_ttl=600))
    unstamped = CONFIG | {"stamped": False}
    await fleet.say(one, "telegram:1", config=unstamped)
    await fleet.say(two, "telegram:2", config=unstamped)
    await fleet.say(two, "telegram:3")
    fleet.clock.advance(6000)
    assert await one.sweep() == 1
    await fleet.goes("telegram:3")
    assert fleet.order() == ["telegram:1", "telegram:2"]
    assert await fleet.untouched("telegram:1", "telegram:2")
    assert not (await fleet.say(one, "telegram:1", config=unstamped)).fresh


async def test_b20_no_cap_no_eviction(fleet: Fleet) -> None:
    """B20: no cap configured means no eviction by cap: never an error."""
    one, two = await fleet.workers(2, limits=Limits())
    sessions = [f"telegram:{number}" for number in range(24)]
    await one.insert(sessions[::2])
    await two.insert(sessions[1::2])
    assert sorted(fleet.order()) == await fleet.resident() == sorted(sessions)
    fleet.clock.advance(30_000)
    assert await one.sweep() == 0, "no TTL either"
    assert fleet.evictions == 0
    assert await fleet.untouched(*sessions)


async def test_b21_the_order_can_be_read(fleet: Fleet) -> None:
    """B21: a hit refreshes the LRU position: the order can be read back, oldest first."""
    one, two = await fleet.workers(2)
    for seat, name in ((one, "telegram:1"), (two, "telegram:2"), (one, "telegram:3"), (two, "telegram:4")):
        await fleet.say(seat, name)
    assert fleet.order() == ["telegram:1", "telegram:2", "telegram:3", "telegram:4"]
    assert not (await fleet.say(one, "telegram:1")).fresh
    assert not (await fleet.say(two, "telegram:2")).fresh
    assert fleet.order() == ["telegram:3", "telegram:4", "telegram:1", "telegram:2"]
    assert await one.resident() == ["telegram:3", "telegram:1"]
    assert await two.resident() == ["telegram:4", "telegram:2"]
    oldest = fleet.client.zrange(fleet.keys.lru, 0, 0)
    assert oldest == [b"telegram:3"], "what an operator reads with redis-cli"
