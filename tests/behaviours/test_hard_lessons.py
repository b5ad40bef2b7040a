"""What running such caches taught its users: H1–H10."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
from support import fleet as fleets
from support.agents import CastLifecycle
from support.fleet import CONFIG, Fleet, LocalSeat, until
from support.keys import fake

from coordinator import BuildFailed, CoordinatorUnavailable, LeaseLost, Limits, SessionBusy
from coordinator import operations as ops
from coordinator.private_redis import PrivateRedis

#: A lease that tests wait for: the shortest that fakeredis keeps up with.
SHORT = 1.5


@pytest.mark.processes
async def test_h1_a_stale_agent_is_rebuilt_and_only_a_stale_one(fleet: Fleet) -> None:
    """H1: when another process has served the session since, a warm agent is stale: never reused. And only then."""
    one, two = await fleet.workers(2)
    said: list[str] = []
    serials = []
    for seat, fresh in ((one, True), (one, False), (two, True), (two, False), (one, True), (one, False), (one, False)):
        said.append(f"message {len(said)}")
        turn = await fleet.say(seat, "telegram:1", said[-1])
        assert turn.history == said, "the agent knows what was said on the other worker"
        assert turn.fresh is fresh
        serials.append((seat.id, turn.serial))
        await fleet.say(two, "telegram:2")  # somebody else's session makes nothing stale
    assert len(set(serials)) == 3
    await fleet.settle()
    assert sorted(record.gone for record in await fleet.records("telegram:1")) == [0, 1, 1]
    assert fleet.count("moves") == fleet.evictions == 2


@pytest.mark.processes
async def test_h1_also_when_every_message_is_lost(fleet: Fleet) -> None:
    """H1: never reused, though the stale agent is still there: nobody told its worker that it was served elsewhere."""
    one, two = await fleet.workers(2)
    await fleet.each(lambda seat: seat.deafen())
    said: list[str] = []
    for seat, fresh in ((one, True), (two, True), (one, True), (one, False), (two, True)):
        said.append(f"message {len(said)}")
        turn = await fleet.say(seat, "telegram:1", said[-1])
        assert turn.history == said
        assert turn.fresh is fresh
    assert await one.resident() == await two.resident() == ["telegram:1"], "the stale one is still there"
    assert [found.worker for found in fleet.hall.sessions()] == [two.id]


@pytest.mark.processes
async def test_h2_turns_of_one_conversation_are_serialised(fleet: Fleet) -> None:
    """H2: turns are serialised per conversation, whatever routing key they came in by."""
    one, two = await fleet.workers(2)
    async with fleet.turn(one, "telegram:1", lease_key="conversation-1"):
        for session, key in (("web:9", "conversation-1"), ("conversation-1", None), ("telegram:1", "other")):
            with pytest.raises(SessionBusy) as busy:
                await two.open(session, lease_key=key, wait=0)
            assert busy.value.worker == one.id
        waiting = asyncio.create_task(fleet.say(two, "web:9", lease_key="conversation-1", wait=fleets.patience))
        await until(lambda: fleet.client.zcard(fleet.keys.waiting("conversation-1")), what="somebody in line")
        assert (await fleet.say(two, "web:8", lease_key="conversation-2", wait=0)).fresh, "another conversation"
        assert not waiting.done()
    assert (await waiting).fresh
    assert fleet.client.zcard(fleet.keys.leases) == 0


async def test_h2_the_lease_moves_when_the_id_rotates(fleet: Fleet) -> None:
    """H2: a turn can move its lease when the resolved session id rotates mid-turn."""
    one, two = await fleet.workers(2)

    async def rebind(play: Any, key: str) -> None:
        await one._do(play.turn.rebind, key)

    async with fleet.turn(one, "telegram:1", lease_key="before") as play:
        waiting = asyncio.create_task(fleet.say(two, "web:1", lease_key="before", wait=fleets.patience))
        await until(lambda: fleet.client.zcard(fleet.keys.waiting("before")), what="somebody in line")
        await rebind(play, "after")
        assert (await waiting).fresh, "the old id is free, and whoever waited for it was woken"
        with pytest.raises(SessionBusy):
            await two.open("web:1", lease_key="after", wait=0)
        async with fleet.turn(two, "web:2", lease_key="taken"):
            with pytest.raises(SessionBusy):
                await rebind(play, "taken")
        with pytest.raises(SessionBusy):
            await two.open("web:1", lease_key="after", wait=0)  # the lease stayed where it was
        await play.say()
    assert (await fleet.say(two, "web:1", lease_key="after", wait=0)).history[-1] == "hello"


@pytest.mark.parametrize("where", ["here", "elsewhere"])
@pytest.mark.processes
async def test_h3_a_late_unwind_ends_nothing_newer(fleet: Fleet, where: str) -> None:
    """H3: a release never takes down its successor; a late unwind of an old turn cannot end a newer one."""
    one, two = await fleet.workers(2, lease=60)
    heir = one if where == "here" else two
    old = await one.open("telegram:1")
    await old.say("old")
    fleet.clock.advance(61)
    new = await heir.open("telegram:1", wait=0)
    assert new.fresh
    assert new.fence > old.fence
    await fleet.settle()
    with pytest.raises(LeaseLost):
        await old.end()
    await fleet.settle()
    records = {record.fence: record for record in await fleet.records("telegram:1")}
    assert (records[old.fence].released, records[new.fence].gone) == (1, 0)
    assert fleet.look("telegram:1").fence == new.fence
    with pytest.raises(SessionBusy):
        await two.open("telegram:1", wait=0)
    await new.say("new")
    await new.end()
    again = await fleet.say(heir, "telegram:1")
    assert (again.fresh, again.serial) == (False, new.serial)


@pytest.mark.processes
async def test_h3_a_message_about_an_old_generation_does_nothing(fleet: Fleet) -> None:
    """H3: everything is keyed by (session, generation): a late or doubled eviction meets no newer copy."""
    one, two = await fleet.workers(2)
    first = await fleet.say(one, "telegram:1")
    assert await two.evict("telegram:1")
    second = await fleet.say(one, "telegram:1")
    for mode in ("soft", "hard"):
        late = {"v": 1, "session": "telegram:1", "generation": str(first.fence), "mode": mode, "reason": "lru"}
        for seat in (one, two):
            fleet.client.publish(fleet.keys.channel(seat.id), json.dumps(late))
    await fleet.settle()
    third = await fleet.say(one, "telegram:1")
    assert (third.fresh, third.serial) == (False, second.serial)
    records = sorted(await fleet.records("telegram:1"), key=lambda record: record.fence)
    assert [record.gone for record in records] == [1, 0]


@pytest.mark.parametrize("mode", ["soft", "hard"])
async def test_h4_a_teardown_that_hangs_is_in_nobody_s_way(fleet: Fleet, mode: str) -> None:
    """H4: teardown never runs under a lock, on the event loop or on the path of another session."""
    one, two = await fleet.workers(2)
    gate = f"{'close' if mode == 'hard' else 'release'}:telegram:1"
    await fleet.say(one, "telegram:1")
    await fleet.say(one, "telegram:2")
    await one.shut(gate)
    assert await one.evict("telegram:1", mode)

    async def hangs() -> bool:
        return (await fleet.record("telegram:1")).calls[-1:] == [gate.split(":")[0]]

    await until(hangs, what="the teardown")
    async with asyncio.timeout(10):  # far less than the gate's patience, and than the time limit of a release
        assert not (await fleet.say(one, "telegram:2")).fresh
        assert (await fleet.say(one, "telegram:3")).fresh
        assert await one.evict("telegram:3")
        await fleet.goes("telegram:3")
        assert (await fleet.say(two, "telegram:4")).fresh
        assert await one.sweep() == 0
        assert await one.resident() == ["telegram:2"]
        if mode == "soft":
            assert (await fleet.say(two, "telegram:1")).fresh, "nor in the way of its own session, elsewhere"
        else:
            with pytest.raises(SessionBusy, match="ends its last life first"):
                await two.open("telegram:1", wait=0)
    assert (await fleet.records("telegram:1"))[0].gone == 0
    await one.unlock(gate)
    assert (await fleet.say(two, "telegram:1")).fresh == (mode == "hard")


async def test_h4_a_teardown_has_a_time_limit(fleet: Fleet) -> None:
    """H4: teardown has a time limit: one that hangs holds up neither the releases behind it nor the worker."""
    one = await fleet.worker(lease=SHORT, release_limit=0.3, release_threads=2)
    await fleet.worker(lease=SHORT)
    for number in range(3):
        await one.shut(f"release:telegram:{number}")
        await fleet.say(one, f"telegram:{number}")
        assert await one.evict(f"telegram:{number}")
    await fleet.say(one, "telegram:9")
    assert await one.evict("telegram:9")
    await fleet.goes("telegram:9")
    assert len(await fleet.warnings("gave up on the soft release")) >= 2
    async with asyncio.timeout(10):
        await one.close()
    assert [(await fleet.record(f"telegram:{number}")).gone for number in range(3)] == [0, 0, 0]


@pytest.mark.processes
async def test_h5_what_must_outlive_the_agent_goes_first(fleet: Fleet) -> None:
    """H5: evicting under pressure commits what must outlive the agent first (memory, snapshot), then releases."""
    one, two = await fleet.workers(2, limits=Limits(room=1))
    await fleet.say(one, "telegram:1", "remember me")
    await one.shut("release:telegram:1")
    await fleet.say(two, "telegram:2")

    async def releasing() -> bool:
        return (await fleet.record("telegram:1")).calls == ["keep", "release"]

    await until(releasing, what="the release, after the memory was kept")
    assert (await fleet.say(two, "telegram:1")).history == ["remember me", "hello"], "the snapshot was there before"
    await one.unlock()
    await fleet.settle()
    old = min(await fleet.records("telegram:1"), key=lambda record: record.fence)
    assert (old.calls, old.released) == (["keep", "release"], 1)


class _Forgetful(CastLifecycle):
    """Its memory provider is down."""

    def keep(self, agent: Any) -> None:
        super().keep(agent)
        raise ConnectionError("no memory provider")


async def test_h5_a_failing_memory_does_not_keep_the_agent(fleet: Fleet) -> None:
    """H5: if what must outlive the agent cannot be kept, the agent is let go of all the same."""
    one = await fleet.worker(lifecycle=_Forgetful)
    two = await fleet.worker()
    await fleet.say(one, "telegram:1")
    assert await two.evict("telegram:1", "hard")
    await fleet.goes("telegram:1", "close")


@pytest.mark.processes
async def test_h5_the_end_of_a_session_happens_once(fleet: Fleet) -> None:
    """H5: the end-of-session hook runs exactly once in the whole fleet, however many ask for it."""
    one, two = await fleet.workers(2)
    await fleet.say(one, "telegram:1")
    await one.shut("close:telegram:1")
    found = await asyncio.gather(*((one, two)[i % 2].evict("telegram:1", "hard") for i in range(6)))
    assert found.count(True) == 1
    await one.unlock("close:telegram:1")
    await fleet.goes("telegram:1", "close")
    await fleet.settle()
    assert await fleet.ended() == [], "its agent was closed: that was its end"


@pytest.mark.processes
async def test_h5_the_end_of_a_session_that_nobody_holds_happens_once(fleet: Fleet) -> None:
    """H5: the same for a session that nobody holds: one of those who ask runs the hook."""
    one, two = await fleet.workers(2)
    for seat in (one, two):
        await seat.shut("end:telegram:1")
    found = await asyncio.gather(*((one, two)[i % 2].evict("telegram:1", "hard") for i in range(6)))
    assert found == [False] * 6
    await until(fleet.ended, what="the hook")
    await fleet.each(lambda seat: seat.unlock())
    await fleet.settle()
    assert await fleet.ended() == ["telegram:1"]
    assert fleet.client.hlen(fleet.keys.closing) == 0


async def test_h5_a_reset_right_behind_an_end_is_not_forgotten(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """H5: a session that is reset again in the very moment its end was reported ends again; nothing stays `closing`."""
    one, _ = await fleet.workers(2)
    loop, report = asyncio.get_running_loop(), ops.closed
    first, behind = iter([True]), asyncio.Event()

    async def report_then_reset(*arguments: Any) -> None:  # runs on a thread of the releases
        await report(*arguments)
        if next(first, False):
            asyncio.run_coroutine_threadsafe(one.evict("telegram:1", "hard"), loop).result(10)
            loop.call_soon_threadsafe(behind.set)

    monkeypatch.setattr(ops, "closed", report_then_reset)
    assert not await one.evict("telegram:1", "hard")
    await behind.wait()
    await fleet.settle()
    assert await fleet.ended() == ["telegram:1", "telegram:1"]
    assert fleet.client.hlen(fleet.keys.closing) == 0


@pytest.mark.stages("processes")
async def test_h5_the_end_of_a_session_outlives_its_worker(fleet: Fleet) -> None:
    """H5: if the worker that was to close a session is killed, another one ends the session, once."""
    one, two, three = await fleet.workers(3, lease=SHORT)
    await fleet.say(one, "telegram:1")
    await one.shut("close:telegram:1")
    one.kill()
    assert await two.evict("telegram:1", "hard")
    await until(fleet.ended, what="the hook on another worker")
    await until(lambda: fleet.client.hlen(fleet.keys.closing) == 0, what="the end of the ending")
    await until(lambda: fleet.events("gone"), what="the end of the dead worker")
    await fleet.settle()
    assert await fleet.ended() == ["telegram:1"]
    assert (await fleet.say(three, "telegram:1")).history == ["hello"]


@pytest.mark.parametrize("modes", [("soft", "soft", "soft"), ("soft", "hard", "soft"), ("hard", "soft")], ids="-".join)
@pytest.mark.processes
async def test_h6_an_eviction_mid_turn_waits_for_the_end(fleet: Fleet, modes: tuple[str, ...]) -> None:
    """H6: evicting an agent that is mid-turn marks it; it is released when the turn ends, once. Hard beats soft."""
    one, two = await fleet.workers(2)
    hardest = "hard" if "hard" in modes else "soft"
    async with fleet.turn(one, "telegram:1") as play:
        for seat, mode in zip((two, one, two), modes, strict=False):
            assert await seat.evict("telegram:1", mode)
        assert fleet.look("telegram:1").evict == f"{hardest} reset"
        assert await fleet.untouched("telegram:1")
        await play.say()
    record = await fleet.goes("telegram:1", "close" if hardest == "hard" else "release")
    await fleet.settle()
    assert record.gone == 1
    assert fleet.evictions == 1
    assert fleet.order() == []


@pytest.mark.parametrize("how", ["soft", "hard", "lost", "drain"])
async def test_h7_a_released_agent_frees_its_history(fleet: Fleet, how: str) -> None:
    """H7: a released agent frees its message history: a busy session holds tens of MB."""
    one, two = await fleet.workers(2, lease=60)
    play = await one.open("telegram:1")
    history = weakref.ref(play.agent.history)
    await play.say("x" * 1000)
    if how == "lost":
        fleet.clock.advance(61)
        with pytest.raises(LeaseLost):
            await play.end()
    else:
        await play.end()
    del play
    assert how == "lost" or history() is not None
    if how == "drain":
        await one.close()
    elif how != "lost":
        assert await two.evict("telegram:1", how)
    await until(lambda: gc.collect() >= 0 and history() is None, what="the end of the history")


@pytest.mark.processes
async def test_h8_a_timed_out_wait_holds_nothing(fleet: Fleet) -> None:
    """H8: a timed-out wait never pretends to hold the lease, and never overwrites the holder's token."""
    one, two = await fleet.workers(2)
    async with fleet.turn(one, "telegram:1") as play:
        before = fleet.client.hgetall(fleet.keys.session("telegram:1"))
        for seat in (two, one):
            for wait in (0, 0.2):
                with pytest.raises(SessionBusy) as busy:
                    await seat.open("telegram:1", wait=wait)
                assert busy.value.worker == one.id
        assert fleet.client.hgetall(fleet.keys.session("telegram:1")) == before
        assert fleet.client.zcard(fleet.keys.waiting("telegram:1")) == 0, "nobody is left in line"
        await play.say()
    assert not (await fleet.say(one, "telegram:1", wait=0)).fresh, "the holder's end counted"
    assert len(await fleet.records("telegram:1")) == 1


async def test_h8_a_turn_that_did_not_begin_has_no_agent(fleet: Fleet) -> None:
    """H8: there is nothing to use in a turn whose wait timed out, and leaving it ends nobody's turn."""
    one, two = await fleet.workers(2)
    async with fleet.turn(one, "telegram:1"):
        turn = two.worker.turn("telegram:1", CONFIG, wait=0)
        with pytest.raises(SessionBusy):
            await two._do(turn.__aenter__ if fleet.kind == "async" else turn.__enter__)
        with pytest.raises(RuntimeError, match="not yours to use"):
            _ = turn.agent
        assert turn.fence == 0
        assert fleet.look("telegram:1").worker == one.id


@pytest.mark.stages("processes")
async def test_h9_a_killed_process_frees_its_sessions(fleet: Fleet) -> None:
    """H9: a turn that is killed frees its session, within its lease."""
    one, two = await fleet.workers(2, lease=SHORT)
    await fleet.say(one, "telegram:idle")
    play = await one.open("telegram:1")
    await play.say("never answered")
    one.kill()
    with pytest.raises(SessionBusy):
        await two.open("telegram:1", wait=0)
    again = await fleet.say(two, "telegram:1", wait=SHORT + fleets.patience)
    assert again.fresh
    assert again.history == ["hello"], "what the killed turn did was never accepted"
    await until(lambda: [event["worker"] for event in fleet.events("gone")] == [one.id], what="the dead worker")
    assert fleet.order() == ["telegram:1"]
    assert fleet.count("lost") == 1


@pytest.mark.stages("processes")
async def test_h9_a_paused_process_is_no_owner(fleet: Fleet) -> None:
    """H9: a live process is not a live owner: a worker that was stopped for longer than its lease has lost its turn."""
    one, two = await fleet.workers(2, lease=SHORT)
    play = await one.open("telegram:1")
    one.pause()
    try:
        heir = await two.open("telegram:1", wait=SHORT + fleets.patience)
        assert heir.fresh
    finally:
        one.resume()
    with pytest.raises(LeaseLost):
        await play.end()
    await fleet.settle()
    assert fleet.look("telegram:1").fence == heir.fence
    await heir.say()
    await heir.end()
    assert sorted([(record.fence == heir.fence, record.gone) for record in await fleet.records("telegram:1")]) == [
        (False, 1),
        (True, 0),
    ]


@pytest.mark.processes
async def test_h9_a_turn_that_was_dropped_is_not_renewed(fleet: Fleet) -> None:
    """H9: a lease that is not renewed by *this turn* ends, though its worker lives and renews its others."""
    one, two = await fleet.workers(2, lease=SHORT)
    kept = await one.open("telegram:kept")
    dropped = await one.open("telegram:1")
    await dropped.forget()
    del dropped
    again = await fleet.say(two, "telegram:1", wait=SHORT + fleets.patience)
    assert again.fresh
    await kept.say()
    with pytest.raises(SessionBusy):
        await two.open("telegram:kept", wait=0)
    await kept.end()

    async def let_go() -> bool:  # by whoever found the turn, a moment after its session was freed
        return (await fleet.records("telegram:1"))[0].gone == 1

    await until(let_go, what="the release of the dropped turn's agent")


@pytest.mark.processes
async def test_h9_a_renewed_turn_outlives_its_lease(fleet: Fleet) -> None:
    """H9: and the other way round: a turn whose worker renews it keeps its session for as long as it runs."""
    one, two = await fleet.workers(2, lease=SHORT)
    async with fleet.turn(one, "telegram:1") as play:
        begun = fleet.client.zscore(fleet.keys.leases, "telegram:1")
        await until(
            lambda: (fleet.client.zscore(fleet.keys.leases, "telegram:1") or 0) > begun + 1000 * SHORT,
            what="renewals for longer than a lease",
        )
        with pytest.raises(SessionBusy):
            await two.open("telegram:1", wait=0)
        await play.say()
    assert not (await fleet.say(one, "telegram:1")).fresh
    assert fleet.count("lost") == 0


@pytest.mark.processes
async def test_h9_a_crashed_turn_frees_its_session(fleet: Fleet) -> None:
    """H9: a turn whose body or builder crashed frees its session at once."""
    one, two = await fleet.workers(2)
    with pytest.raises(ZeroDivisionError):
        async with fleet.turn(one, "telegram:1"):
            raise ZeroDivisionError
    await fleet.say(two, "telegram:1", wait=0)
    with pytest.raises(BuildFailed):
        await one.open("telegram:2", CONFIG | {"broken": True})
    assert fleet.hall.session("telegram:2") is None
    assert (await fleet.say(two, "telegram:2", wait=0)).fresh


async def test_h9_a_cancelled_turn_frees_its_session(fleet: Fleet) -> None:
    """H9: a turn that is cancelled frees its session at once, whether it runs, or (async) builds or waits in line."""
    one, two = await fleet.workers(2, plain=True)
    running = asyncio.Event()

    async def message(seat: LocalSeat) -> None:
        async with fleet.turn(seat, "telegram:1"):
            running.set()
            await asyncio.Event().wait()

    async def cancel(task: asyncio.Task[None]) -> None:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    task = asyncio.create_task(message(one))
    await running.wait()
    await cancel(task)
    async with fleet.turn(two, "telegram:1", wait=0):
        if fleet.kind == "async":
            waiting = asyncio.create_task(message(one))
            await until(lambda: fleet.client.zcard(fleet.keys.waiting("telegram:1")), what="somebody in line")
            await cancel(waiting)
            assert fleet.client.zcard(fleet.keys.waiting("telegram:1")) == 0
    if fleet.kind == "async":
        await one.shut("build:telegram:1")
        building = asyncio.create_task(message(one))
        await until(lambda: fleet.look("telegram:1").worker == one.id, what="the build")
        await cancel(building)
        assert fleet.hall.session("telegram:1") is None
        await one.unlock()
    assert await fleet.say(two, "telegram:1", wait=0)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_h10_busy_and_unreachable_are_different(kind: str, room: str, own_server: PrivateRedis) -> None:
    """H10: waiting for a session that is busy, and Redis being unreachable, are different errors."""
    await _busy_then_unreachable(kind, room, own_server.url, own_server.kill)


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_h10_also_on_fakeredis(kind: str, room: str) -> None:
    """H10: the same on fakeredis."""
    server = fakeredis.FakeServer()

    def cut() -> None:
        server.connected = False

    await _busy_then_unreachable(kind, room, fake(server), cut)


async def _busy_then_unreachable(kind: str, room: str, source: Any, cut: Callable[[], None]) -> None:
    brief = {"retry_for": 0.05, "drain_for": 0.05, "limits": Limits()}
    one, two = (LocalSeat(kind, source, room, **brief) for _ in range(2))
    await one.start()
    await two.start()
    try:
        play = await one.open("telegram:1")
        for wait in (0, 0.2):
            with pytest.raises(SessionBusy) as busy:
                await two.open("telegram:1", wait=wait)
            assert not isinstance(busy.value, CoordinatorUnavailable)
            assert busy.value.worker == one.id
        waiting = asyncio.create_task(two.open("telegram:1", wait=60))
        await until(lambda: two.worker._engine.line, what="somebody in line")
        cut()
        two.worker._engine.line.wake_all()
        for attempt in (lambda: waiting, lambda: two.open("telegram:1", wait=0), lambda: two.open("web:1", wait=0)):
            with pytest.raises(CoordinatorUnavailable) as away:
                await attempt()
            assert not isinstance(away.value, SessionBusy)
        with pytest.raises(CoordinatorUnavailable):
            await play.end()
    finally:
        await asyncio.gather(one.close(), two.close())
    (record,) = one.cast.records + two.cast.records
    assert record.gone == 1
