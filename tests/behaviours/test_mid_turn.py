"""Never touch an agent mid-turn: B22–B27a."""

from __future__ import annotations

import asyncio
import json

import pytest
from support.fleet import Fleet, until

from coordinator import LeaseLost, Limits, SessionBusy

pytestmark = pytest.mark.processes


async def test_b22_only_the_excess_window_is_at_risk(fleet: Fleet) -> None:
    """B22: only the excess oldest are candidates; one that is mid-turn is skipped and not replaced by a newer one."""
    one, two = await fleet.workers(2, limits=Limits(room=3))
    async with fleet.turn(one, "telegram:1") as first, fleet.turn(two, "telegram:2") as second:
        for seat, name in ((one, "telegram:3"), (two, "telegram:4"), (one, "telegram:5")):
            await fleet.say(seat, name)
        assert fleet.order() == [f"telegram:{number}" for number in (1, 2, 3, 4, 5)], "two over its cap, for a while"
        assert await fleet.untouched(*fleet.order())
        assert fleet.evictions == 0
        await first.say()
        await second.say()
    await until(lambda: len(fleet.order()) == 3, what="the cap")


async def test_b23_the_second_oldest_goes(fleet: Fleet) -> None:
    """B23: cap 2, four entries, the oldest mid-turn: exactly the second oldest goes; three remain."""
    one, two = await fleet.workers(2, limits=Limits(room=2))
    async with fleet.turn(one, "telegram:1") as play:
        await fleet.say(two, "telegram:2")
        await fleet.say(one, "telegram:3")
        assert fleet.order() == ["telegram:1", "telegram:2", "telegram:3"]
        await fleet.say(two, "telegram:4")
        assert fleet.order() == ["telegram:1", "telegram:3", "telegram:4"]
        await fleet.goes("telegram:2")
        assert await fleet.untouched("telegram:1", "telegram:3", "telegram:4")
        await play.say()
        assert fleet.evictions == 1


async def test_b23_when_the_cap_is_lowered(fleet: Fleet) -> None:
    """B23: the same when four were allowed, and an operator lowers the cap to two."""
    one, two = await fleet.workers(2)
    await fleet.say(one, "telegram:1")
    for seat, name in ((two, "telegram:2"), (one, "telegram:3"), (two, "telegram:4")):
        await fleet.say(seat, name)
    async with fleet.turn(one, "telegram:1") as play:
        fleet.hall.set_limits(Limits(room=2))
        await fleet.say(two, "telegram:4")
        assert fleet.order() == ["telegram:1", "telegram:3", "telegram:4"]
        await fleet.goes("telegram:2")
        assert await fleet.untouched("telegram:1", "telegram:3", "telegram:4")
        await play.say()


async def test_b24_all_mid_turn_nothing_goes_and_one_warning(fleet: Fleet) -> None:
    """B24: all candidates mid-turn: nothing is evicted or released, and one warning tells the operator."""
    one, two = await fleet.workers(2, limits=Limits(room=2))
    plays = [await seat.open(f"telegram:{number}") for number, seat in enumerate((one, two), 1)]
    assert (await fleet.warnings("mid-turn"), fleet.events("over-cap"), fleet.count("over_cap")) == ([], [], 0)
    plays += [await seat.open(f"telegram:{number}") for number, seat in enumerate((one, two, one), 3)]
    assert fleet.order() == [f"telegram:{number}" for number in range(1, 6)]
    assert fleet.evictions == 0
    assert await fleet.untouched(*fleet.order())
    assert len(await fleet.warnings("mid-turn")) == 1, "one, though three were added"
    assert [(event["why"], event["over"]) for event in fleet.events("over-cap")] == [("mid-turn", "1")]
    assert fleet.count("over_cap") == 1
    for play in plays:
        await play.say()
        await play.end()
    assert len(fleet.order()) == 2
    for number, seat in enumerate((one, two, one), 6):
        plays[number - 6] = await seat.open(f"telegram:{number}")
    assert (len(await fleet.warnings("mid-turn")), fleet.count("over_cap")) == (2, 2), "another time, another warning"
    for play in plays[:3]:
        await play.end()


async def test_b25_a_build_blocks_nobody_and_does_not_count(fleet: Fleet) -> None:
    """B25: a session still being built does not block the eviction of others, and does not count until it is built."""
    one, two = await fleet.workers(2, limits=Limits(room=2))
    await fleet.say(two, "telegram:1")
    await fleet.say(one, "telegram:2")
    await one.shut("build:telegram:slow")
    building = asyncio.create_task(one.open("telegram:slow"))
    await until(lambda: fleet.hall.session("telegram:slow"), what="the build")
    assert fleet.look("telegram:slow").state == "building"
    assert not (await fleet.say(one, "telegram:2")).fresh
    assert fleet.order() == ["telegram:1", "telegram:2"], "two are built: the third does not count yet"
    await fleet.say(two, "telegram:3")
    assert fleet.order() == ["telegram:2", "telegram:3"]
    await fleet.goes("telegram:1")
    assert (fleet.evictions, fleet.count("over_cap")) == (1, 0)
    await one.unlock("build:telegram:slow")
    play = await building
    assert fleet.order() == ["telegram:3", "telegram:slow"], "it came in as the newest"
    await fleet.goes("telegram:2")
    assert await fleet.untouched("telegram:3", "telegram:slow")
    await play.say()
    await play.end()


async def test_b26_the_sweep_skips_what_is_mid_turn(fleet: Fleet) -> None:
    """B26: the idle sweep skips an agent mid-turn, however stale its timestamp."""
    one, two = await fleet.workers(2, limits=Limits(idle_ttl=60))
    await fleet.say(one, "telegram:1")
    await fleet.say(two, "telegram:2")
    fleet.clock.advance(3000)
    async with fleet.turn(one, "telegram:1") as play:
        assert not play.fresh
        if not fleet.in_processes:
            play.agent._last_activity_ts = 0.0
        fleet.clock.advance(3000)
        assert await two.sweep() == 1
        await fleet.goes("telegram:2")
        assert await one.sweep() == 0
        assert fleet.order() == ["telegram:1"]
        assert await fleet.untouched("telegram:1")
        await play.say()
    assert await two.sweep() == 0, "its turn has just ended"
    fleet.clock.advance(100)
    assert await two.sweep() == 1
    await fleet.goes("telegram:1")


async def test_b27_the_client_stays_usable_whatever_is_evicted(fleet: Fleet) -> None:
    """B27: the client of an agent mid-turn stays usable whatever is evicted meanwhile."""
    one, two = await fleet.workers(2, limits=Limits(room=2, idle_ttl=60))
    async with fleet.turn(one, "telegram:1") as play:
        await two.insert([f"telegram:{number}" for number in range(10, 16)])
        assert await fleet.untouched("telegram:1")
        await play.say("after others came and went")
        fleet.clock.advance(100)
        await two.sweep()
        assert await fleet.untouched("telegram:1")
        await play.say("after a sweep")
        assert await two.evict("telegram:1")
        assert await fleet.untouched("telegram:1")
        await play.say("after a reset of this very session")
        assert fleet.hall.evict("telegram:1", "hard")
        assert fleet.hall.evict_worker(one.id) == 1
        assert await fleet.untouched("telegram:1")
        assert len(await play.say("after an operator closed it")) == 4
        forged = {"v": 1, "session": "telegram:1", "generation": str(play.fence), "mode": "soft", "reason": "lru"}
        fleet.client.publish(fleet.keys.channel(one.id), json.dumps(forged))
        assert await fleet.untouched("telegram:1")
        await play.say("after a message that Redis never sent")
        with pytest.raises(SessionBusy):
            await two.open("telegram:1", wait=0)
    await fleet.goes("telegram:1", "close")


async def test_b27_also_when_redis_took_the_session_away(fleet: Fleet) -> None:
    """B27: a turn that is lost without knowing it still has its agent to itself, until it leaves it."""
    (one,) = await fleet.workers(1)
    play = await one.open("telegram:1")
    fleet.client.delete(fleet.keys.session("telegram:1"))
    gone = {"v": 1, "session": "telegram:1", "generation": str(play.fence), "mode": "soft", "reason": "lost"}
    fleet.client.publish(fleet.keys.channel(one.id), json.dumps(gone))
    assert await fleet.untouched("telegram:1")
    await play.say("after it was lost")
    with pytest.raises(LeaseLost):
        await play.end()
    await fleet.goes("telegram:1")


async def test_b27a_the_end_of_a_turn_brings_the_cap_back(fleet: Fleet) -> None:
    """B27a: as soon as a turn ends, an over-full cache is brought back to its cap."""
    one, two = await fleet.workers(2, limits=Limits(room=2))
    async with fleet.turn(one, "telegram:1"):
        await fleet.say(two, "telegram:2")
        await fleet.say(one, "telegram:3")
        assert fleet.order() == ["telegram:1", "telegram:2", "telegram:3"]
    assert fleet.order() == ["telegram:3", "telegram:1"]
    await fleet.goes("telegram:2")
    assert await fleet.untouched("telegram:1", "telegram:3")


async def test_b27a_also_when_all_were_mid_turn(fleet: Fleet) -> None:
    """B27a: the same when every entry was mid-turn: with the last of them the room is at its cap."""
    one, two = await fleet.workers(2, limits=Limits(room=2))
    plays = [await seat.open(f"telegram:{number}") for number, seat in enumerate((one, two, one, two), 1)]
    assert len(fleet.order()) == 4
    for play in plays:
        await play.end()
    assert fleet.order() == ["telegram:3", "telegram:4"]
    await fleet.goes("telegram:1")
    await fleet.goes("telegram:2")
    assert await fleet.untouched("telegram:3", "telegram:4")
