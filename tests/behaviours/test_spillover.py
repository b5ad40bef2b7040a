"""Spillover with real agents: B28–B31."""

from __future__ import annotations

import asyncio

import pytest
from support.fleet import Fleet, until

from coordinator import Limits

pytestmark = pytest.mark.processes


async def test_b28_one_more_than_the_cap(fleet: Fleet) -> None:
    """B28: fill to the cap, add one: the oldest goes, the newcomer stays, size = cap."""
    one, two = await fleet.workers(2, limits=Limits(room=4))
    sessions = [f"telegram:{number}" for number in range(5)]
    for number, name in enumerate(sessions[:4]):
        await fleet.say((one, two)[number % 2], name)
    assert fleet.order() == sessions[:4]
    await fleet.say(two, sessions[4])
    assert fleet.order() == sessions[1:]
    await fleet.goes(sessions[0])
    assert await fleet.resident() == sorted(sessions[1:])
    assert await fleet.untouched(*sessions[1:])
    assert (await fleet.say(two, sessions[4], "again")).history == ["hello", "again"]


async def test_b29_every_slot_mid_turn_and_one_more(fleet: Fleet) -> None:
    """B29: every slot mid-turn, add one: size = cap + 1, every agent still usable, operator warned."""
    one, two = await fleet.workers(2, limits=Limits(room=4))
    plays = [await (one, two)[number % 2].open(f"telegram:{number}") for number in range(5)]
    assert len(fleet.order()) == len(await fleet.resident()) == 5
    await fleet.settle()
    for play in plays:
        assert await play.say() == ["hello"]
    assert len(await fleet.warnings("mid-turn")) == 1
    (event,) = fleet.events("over-cap")
    assert (event["index"], event["cap"], event["over"], event["why"]) == ("lru", "4", "1", "mid-turn")
    assert fleet.count("over_cap") == 1
    assert fleet.evictions == 0
    for play in plays:
        await play.end()
    assert len(fleet.order()) == 4


async def test_b30_eight_at_once_end_at_exactly_the_cap(fleet: Fleet) -> None:
    """B30: eight threads (or processes) with 20 inserts each into a cap of 16 end at exactly 16, with no deadlock."""
    seats = await fleet.workers(8 if fleet.in_processes else 2, limits=Limits(room=16))
    strands = [[f"telegram:{strand}-{number}" for number in range(20)] for strand in range(8)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(seats[i % len(seats)].insert(names) for i, names in enumerate(strands)))
    order = fleet.order()
    assert len(order) == 16
    assert fleet.count("builds") == 160
    assert fleet.count("evictions:lru") == fleet.evictions == 144
    await fleet.settle()
    assert await fleet.resident() == sorted(order)
    records = await fleet.records()
    assert len(records) == 160
    assert sorted(record.session for record in records if not record.gone) == sorted(order)
    assert all((record.released, record.closed) == (1, 0) for record in records if record.session not in order)


async def test_b31_the_next_message_builds_a_fresh_agent(fleet: Fleet) -> None:
    """B31: an evicted session's next message builds a fresh, usable agent, which takes the old one's place."""
    one, two = await fleet.workers(2, limits=Limits(room=2))
    first = await fleet.say(one, "telegram:1", "one")
    await fleet.say(two, "telegram:2")
    await fleet.say(two, "telegram:3")
    await fleet.goes("telegram:1")
    again = await fleet.say(one, "telegram:1", "two")
    assert again.fresh
    assert again.serial != first.serial
    assert again.fence > first.fence
    assert again.history == ["one", "two"], "it came back warm, from its snapshot"
    assert fleet.order() == ["telegram:3", "telegram:1"]
    await fleet.goes("telegram:2")
    assert fleet.look("telegram:1").generation == again.fence
    assert not (await fleet.say(one, "telegram:1")).fresh
    await until(lambda: fleet.evictions == 2, what="two evictions")
    old, new = sorted(await fleet.records("telegram:1"), key=lambda record: record.fence)
    assert (old.released, new.gone, new.client_closed) == (1, 0, False)
