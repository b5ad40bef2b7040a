"""H11: a session's end runs once in the fleet, and before its new life begins on any worker."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
import redis
from support.fleet import Fleet, LocalSeat, until

from coordinator import CoordinatorUnavailable, SessionBusy
from coordinator import operations as ops
from coordinator.keys import Keys
from coordinator.private_redis import PrivateRedis

SHORT = 1.5


async def _ends(fleet: Fleet, session: str) -> int:
    """How often the session was ended so far: closes of an agent, and runs of the hook."""
    closes = sum(record.calls.count("close") for record in await fleet.records(session))
    return closes + (await fleet.ended()).count(session)


@pytest.mark.parametrize("held", [True, False], ids=["held", "not-held"])
async def test_h11_a_report_that_is_refused_is_repeated_the_end_is_not(
    fleet: Fleet, held: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await fleet.workers(2, lease=SHORT)
    closed, refused = ops.closed, []

    async def refuse(*arguments: Any) -> None:
        if len(refused) < 5:
            refused.append(time.monotonic())
            raise CoordinatorUnavailable("Redis refuses this user")
        await closed(*arguments)

    monkeypatch.setattr(ops, "closed", refuse)
    if held:
        await fleet.say(one, "telegram:1")
    assert await one.evict("telegram:1", "hard") is held
    assert (await fleet.say(two, "telegram:1")).fresh, "as soon as Redis has heard of it"
    assert len(refused) == 5
    assert await _ends(fleet, "telegram:1") == 1


#: How a real Redis refuses what a worker reports, and how it takes it again. (The user may not write a certain way; no
#: replica has what is written; this is a replica itself, as after a failover that nobody announced.)
REFUSALS = {
    "acl": ("ACL SETUSER worker -hdel", "ACL SETUSER worker +hdel"),
    "no-replicas": ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
    "read-only": ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
}


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(("refuse", "accept"), REFUSALS.values(), ids=REFUSALS)
async def test_h11_whatever_refuses_the_report(
    kind: str, refuse: str, accept: str, room: str, own_server: PrivateRedis
) -> None:
    """H11: the same where Redis itself refuses."""
    with redis.Redis.from_url(own_server.url) as client:
        client.execute_command("ACL SETUSER worker on >secret ~* &* +@all")
        source = own_server.url.replace("//", "//worker:secret@")
        one, two = (LocalSeat(kind, source, room, lease=6.0, retry_for=0.1) for _ in range(2))
        await one.start()
        await two.start()
        try:
            await (await one.open("telegram:1")).end()
            await one.shut("close:telegram:1")
            assert await two.evict("telegram:1", "hard")
            (record,) = one.cast.records
            await until(lambda: "close" in record.calls, what="the close")
            client.execute_command(refuse)
            await one.unlock("close:telegram:1")
            await until(lambda: record.closed, what="the end of the close")
            await asyncio.sleep(1.5)
            assert client.hkeys(Keys(room).closing) == [b"telegram:1"], "it could not be reported"
            client.execute_command(accept)
            async with asyncio.timeout(15):
                await (await two.open("telegram:1")).end()
            assert record.calls.count("close") == 1
            assert one.cast.ended + two.cast.ended == []
        finally:
            await asyncio.gather(one.close(), two.close())


async def test_h11_an_end_comes_before_the_new_life_on_any_worker(fleet: Fleet) -> None:
    one, two = await fleet.workers(2)
    await fleet.say(one, "telegram:1")
    await one.shut("close:telegram:1")
    assert await two.evict("telegram:1", "hard")
    for seat in (one, two):
        with pytest.raises(SessionBusy) as busy:
            await seat.open("telegram:1", wait=0)
        assert (busy.value.why, busy.value.worker) == ("closing", one.id)
    waiting = asyncio.create_task(fleet.say(two, "telegram:1"))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    await one.unlock("close:telegram:1")
    async with asyncio.timeout(10):  # the lease is ten hours: it is woken
        assert (await waiting).fresh
    assert await _ends(fleet, "telegram:1") == 1
    assert fleet.backstage.of("telegram:1").terminal_open, "the new life's state was not torn down"


async def test_h11_a_close_that_is_given_up_on_is_waited_for_no_longer(fleet: Fleet) -> None:
    one, two = await fleet.workers(2, release_limit=0.3)
    await fleet.say(one, "telegram:1")
    await one.shut("close:telegram:1")
    assert await two.evict("telegram:1", "hard")
    async with asyncio.timeout(10):
        assert (await fleet.say(two, "telegram:1")).fresh
    await one.unlock("close:telegram:1")


async def test_h11_a_reset_whose_message_is_lost_is_found_at_the_next_turn(fleet: Fleet) -> None:
    one, two = await fleet.workers(2)
    await fleet.say(one, "telegram:1")
    await one.deafen()
    assert await two.evict("telegram:1", "hard")
    async with asyncio.timeout(10):
        with pytest.raises(SessionBusy):
            await one.open("telegram:1", wait=0)  # wait=0: it is asked, and learns of it
        await until(lambda: _ends(fleet, "telegram:1"), what="the close")
        assert (await fleet.say(two, "telegram:1")).fresh
    assert await _ends(fleet, "telegram:1") == 1


async def test_h11_a_reset_whose_message_is_lost_is_called_to_mind_by_whoever_waits(fleet: Fleet) -> None:
    """No beat for hours, and its worker never comes by itself: the next message, anywhere, tells it again."""
    one, two = await fleet.workers(2)
    await fleet.say(one, "telegram:1")
    await one.deafen()
    assert await two.evict("telegram:1", "hard")
    await until(lambda: one.missed, what="the message that gets lost")
    await one.hear()
    async with asyncio.timeout(10):
        assert (await fleet.say(two, "telegram:1")).fresh
    assert await _ends(fleet, "telegram:1") == 1


async def test_h11_a_reset_whose_messages_are_all_lost_is_found_at_the_next_beat(fleet: Fleet) -> None:
    """Also where others do the room's maintenance, second by second."""
    one, two = await fleet.workers(2, lease=SHORT)
    await fleet.say(one, "telegram:1")
    await one.deafen()
    fleet.client.set(f"{fleet.keys.prefix}maintenance", "another", ex=60)
    assert await two.evict("telegram:1", "hard")
    async with asyncio.timeout(10):
        assert (await fleet.say(two, "telegram:1")).fresh
    assert fleet.client.get(f"{fleet.keys.prefix}maintenance") == b"another"
    assert await _ends(fleet, "telegram:1") == 1


async def _resets_that_hang(fleet: Fleet, one: Any, two: Any, names: list[str]) -> None:
    """Reset these sessions, whose closes hang, and then another, which lives on."""
    for name in names:
        await one.shut(f"close:{name}")
        await two.evict(name, "hard")
    await two.evict("telegram:1", "hard")
    async with asyncio.timeout(10):
        assert (await fleet.say(two, "telegram:1")).fresh


async def test_h11_closes_that_hang_are_in_the_way_of_no_other_reset(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there are ever threads for."""
    monkeypatch.setattr("workers.releases.STUCK", 4)
    one, two = await fleet.workers(2, release_limit=0.3, lease=6.0, release_threads=2)
    names = [f"hangs:{number}" for number in range(8)]
    await one.insert([*names, "telegram:1"])
    await _resets_that_hang(fleet, one, two, names)
    await one.unlock()


async def test_h11_a_close_that_was_given_up_on_while_it_waited_tears_down_no_new_life(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread is free at last, and Redis cannot say whose the end is."""
    monkeypatch.setattr("workers.releases.STUCK", 2)
    one, two = await fleet.workers(2, release_limit=0.3, lease=6.0, release_threads=1)
    names = [f"hangs:{number}" for number in range(4)]
    await one.insert([*names, "telegram:1"])
    await _resets_that_hang(fleet, one, two, names)
    old, _ = await fleet.records("telegram:1")
    assert not old.gone, "it still waits for a thread"

    async def away(*_: Any) -> str:
        raise CoordinatorUnavailable("Redis cannot be reached")

    monkeypatch.setattr(ops, "fate", away)
    await one.unlock()
    await until(lambda: old.gone, what="its release")
    assert (old.released, old.closed) == (1, 0)
    assert fleet.backstage.of("telegram:1").terminal_open, "the new life's state was not torn down"


async def test_h11_an_operator_s_reset_of_a_session_nobody_holds(fleet: Fleet) -> None:
    (one,) = await fleet.workers(1)
    assert not fleet.hall.evict("telegram:1", "hard")
    async with asyncio.timeout(10):  # no beat for hours: whoever comes carries it out
        assert (await fleet.say(one, "telegram:1")).fresh
    assert await fleet.ended() == ["telegram:1"]
    assert fleet.client.hgetall(fleet.keys.closing) == {}


async def test_h11_two_hundred_resets_are_done_within_two_beats(fleet: Fleet) -> None:
    seats = await fleet.workers(2, lease=3 * 1.2)  # a beat is a little longer than the second between two maintenances
    rounds = [_rounds(seat.worker._engine.upkeep) for seat in seats]
    names = sorted(f"telegram:{number}" for number in range(200))
    for name in names:
        fleet.hall.evict(name, "hard")
    for seen in rounds:
        seen.clear()

    async def all_ended() -> bool:
        return not fleet.client.hlen(fleet.keys.closing)

    await until(all_ended)
    assert max(len(seen) for seen in rounds) <= 2
    assert sorted(await fleet.ended()) == names


def _rounds(upkeep: Any) -> list[float]:
    """When a worker's upkeep began a round."""
    seen, action = list[float](), upkeep._action

    def noted() -> float:
        seen.append(time.monotonic())
        return float(action())

    upkeep._action = noted
    return seen


async def test_h11_an_end_whose_worker_is_dead_is_another_s(fleet: Fleet) -> None:
    (one,) = await fleet.workers(1)
    fleet.client.hset(fleet.keys.closing, "telegram:1", "a-worker-that-is-gone 1795000000000000")
    assert (await fleet.say(one, "telegram:1")).fresh
    assert await fleet.ended() == ["telegram:1"]
