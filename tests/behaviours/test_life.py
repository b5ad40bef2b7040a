"""Life of a cached agent: B7–B14. Always with a second worker, which holds sessions of its own and must not notice."""

from __future__ import annotations

from typing import Any

import pytest
from support.fleet import CONFIG, Fleet

OPUS = CONFIG | {"model": "opus"}


async def test_b7_the_same_config_gets_the_very_same_agent(fleet: Fleet) -> None:
    """B7: a second message with the same config gets the very same agent instance."""
    one, two = await fleet.workers(2)
    async with fleet.turn(one, "telegram:1") as first, fleet.turn(two, "telegram:2") as other:
        assert first.fresh
        assert other.fresh
        agent, neighbour = first.agent, other.agent
    turned = dict(reversed(CONFIG.items())) | {"toolsets": CONFIG["toolsets"][::-1]}
    for config in (CONFIG, turned):
        async with fleet.turn(one, "telegram:1", config) as second, fleet.turn(two, "telegram:2") as other:
            assert second.agent is agent
            assert other.agent is neighbour
            assert not second.fresh
            await second.say()
    assert (fleet.count("builds"), fleet.count("hits"), fleet.evictions) == (2, 4, 0)
    assert await fleet.untouched("telegram:1", "telegram:2")


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_b8_another_model_is_a_miss(fleet: Fleet, elsewhere: bool) -> None:
    """B8: a message with another model is a miss: the old agent is released softly and a new one is built."""
    one, two = await fleet.workers(2)
    await fleet.say(two, "telegram:2")
    async with fleet.turn(one, "telegram:1") as first:
        agent, client = first.agent, first.agent.client
    async with fleet.turn(two if elsewhere else one, "telegram:1", OPUS) as second:
        assert second.fresh
        assert second.agent is not agent
        assert second.agent.model == "opus"
        await second.say()
    await fleet.settle()
    old, new = sorted(await fleet.records("telegram:1"), key=lambda record: record.fence)
    assert (old.released, old.closed, client.closed) == (1, 0, True)
    assert (new.gone, new.model) == (0, "opus")
    assert fleet.count("evictions:signature") == fleet.evictions == 1
    assert await fleet.untouched("telegram:2")


@pytest.mark.parametrize("mode", ["soft", "hard"])
async def test_b9_a_reset_evicts(fleet: Fleet, mode: str) -> None:
    """B9: resetting a session evicts its agent, whichever worker is asked."""
    one, two = await fleet.workers(2)
    first = await fleet.say(one, "telegram:1")
    assert await two.evict("telegram:1", mode)
    await fleet.goes("telegram:1", "close" if mode == "hard" else "release")
    assert fleet.order() == await fleet.resident() == []
    assert not await two.evict("telegram:1", mode), "nobody holds it any more"
    second = await fleet.say(one, "telegram:1")
    assert second.fresh
    assert second.serial != first.serial
    assert fleet.count("evictions:reset") == 1


async def test_b10_an_eviction_leaves_others_alone(fleet: Fleet) -> None:
    """B10: evicting one session leaves every other session alone."""
    one, two = await fleet.workers(2)
    sessions = {"telegram:1": one, "telegram:10": one, "telegram:2": two, "discord:1": two}
    first = {name: await fleet.say(seat, name) for name, seat in sessions.items()}
    assert await two.evict("telegram:1")
    await fleet.goes("telegram:1")
    others = [name for name in sessions if name != "telegram:1"]
    assert await fleet.untouched(*others)
    assert fleet.order() == others
    for name in others:
        again = await fleet.say(sessions[name], name)
        assert (again.fresh, again.serial) == (False, first[name].serial)


async def test_b11_reasoning_changes_in_place(fleet: Fleet) -> None:
    """B11: reasoning config is changed on the cached agent in place, with no eviction; its prompt stays the same."""
    one, two = await fleet.workers(2)
    await fleet.say(two, "telegram:2")
    seen: list[Any] = []
    for effort in ("low", "high", None):
        reasoning = {"effort": effort}
        async with fleet.turn(one, "telegram:1", CONFIG | {"reasoning": reasoning}) as play:
            assert play.agent.reasoning_config == (seen[-1][2] if seen else None), "as the last message left it"
            play.agent.reasoning_config = reasoning
            await play.say()
            seen.append((play.agent, play.agent.system_prompt, reasoning))
    assert len({id(agent) for agent, _, _ in seen}) == 1
    assert len({id(prompt) for _, prompt, _ in seen}) == 1
    assert fleet.evictions == 0
    assert await fleet.untouched("telegram:1", "telegram:2")


async def test_b12_the_system_prompt_stays_identical(fleet: Fleet) -> None:
    """B12: the system prompt stays identical across turns of a reused agent."""
    one, two = await fleet.workers(2)
    prompts = []
    for number in range(4):
        async with fleet.turn(one, "telegram:1") as play:
            await play.say(f"message {number}")
            prompts.append(play.agent.system_prompt)
        await fleet.say(two, f"telegram:2{number}")
    assert all(prompt is prompts[0] for prompt in prompts)
    assert len({prompt.text for prompt in prompts}) == 1
    assert fleet.count("builds") == 5


async def test_b13_callbacks_are_set_anew(fleet: Fleet) -> None:
    """B13: callbacks are set anew for each message on the cached agent, with no eviction."""
    one, two = await fleet.workers(2)
    await fleet.say(two, "telegram:2")
    heard: dict[int, list[str]] = {0: [], 1: [], 2: []}
    agents = set()
    for number, listener in heard.items():
        async with fleet.turn(one, "telegram:1", CONFIG | {"on_step": listener.append}) as play:
            play.agent.step_callback = play.turn.config["on_step"]
            await play.say(f"message {number}")
            agents.add(id(play.agent))
    assert heard == {0: ["message 0"], 1: ["message 1"], 2: ["message 2"]}
    assert len(agents) == 1
    assert fleet.evictions == 0


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "elsewhere"])
async def test_b14_a_fallback_is_evicted_at_the_turns_end(fleet: Fleet, elsewhere: bool) -> None:
    """B14: when a turn falls back to another model, its agent is evicted at its end; the next message tries again."""
    one, two = await fleet.workers(2)
    await fleet.say(two, "telegram:2")
    async with fleet.turn(one, "telegram:1") as first:
        first.agent.model = "a cheaper one"
        first.turn.evict_after("fallback")
        assert await fleet.untouched("telegram:1"), "not before the end of the turn"
        await first.say()
    await fleet.goes("telegram:1")
    assert fleet.order() == ["telegram:2"]
    async with fleet.turn(two if elsewhere else one, "telegram:1") as second:
        assert second.fresh
        assert second.agent.model == "sonnet"
    assert fleet.count("evictions:fallback") == fleet.evictions == 1
    assert await fleet.untouched("telegram:2")
