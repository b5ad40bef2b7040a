"""Negative controls: break a rule on purpose, and the very test of that rule must go red."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from support import agents
from support import fleet as fleets
from support.broken import NONE
from support.fleet import Fleet

from behaviours import test_bounds as bounds
from behaviours import test_hard_lessons as lessons
from behaviours import test_life as life
from behaviours import test_mid_turn as mid_turn
from behaviours import test_release as release
from behaviours import test_signature as signing
from behaviours import test_spillover as spillover
from coordinator import GreenroomError, SessionBusy, config_signature, link, signature
from coordinator.codec import Message
from workers import Lifecycle, turns
from workers.copies import Copies, Copy
from workers.engine import Engine
from workers.releases import Releases
from workers.running import Running
from workers.turns import TurnState

#: Scripts are under test here, not the packages: coverage would only slow it down.
pytestmark = pytest.mark.no_cover

#: Tests that wait for leases to run out.
SLOW = (
    lessons.test_h4_a_teardown_has_a_time_limit,
    lessons.test_h5_the_end_of_a_session_outlives_its_worker,
    lessons.test_h9_a_renewed_turn_outlives_its_lease,
)
#: How a test goes red: an assertion, an error that should not have come, or one that did not come.
RED = (AssertionError, GreenroomError, pytest.fail.Exception)


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What must come does not come here: nobody waits long for it, but long enough if nothing were broken."""
    seconds = 5.0 if request.getfixturevalue("test") in SLOW else 0.5
    monkeypatch.setattr(fleets, "patience", seconds)
    monkeypatch.setattr(agents, "patience", 2 * seconds)


def control(rule: str, test: Callable[..., Any], stage: str = "real", **arguments: Any) -> Any:
    """One control: the broken rule, the test that must notice, and on which stage."""
    return pytest.param(("sync", stage, rule), test, arguments, id=f"{rule}-{test.__name__.split('_')[1]}")


IN_LUA = [
    control("nothing is ever warm", life.test_b7_the_same_config_gets_the_very_same_agent),
    control("any signature will do", life.test_b8_another_model_is_a_miss, elsewhere=False),
    control("hard is soft", life.test_b9_a_reset_evicts, mode="hard"),
    control("an eviction takes all", life.test_b10_an_eviction_leaves_others_alone),
    control("nothing is ever warm", life.test_b11_reasoning_changes_in_place),
    control("nothing is ever warm", life.test_b12_the_system_prompt_stays_identical),
    control("nothing is ever warm", life.test_b13_callbacks_are_set_anew),
    control("an end evicts nothing", life.test_b14_a_fallback_is_evicted_at_the_turns_end, elsewhere=False),
    control("no cap", bounds.test_b15_past_the_cap_the_least_recently_used_goes),
    control("the newest goes", bounds.test_b15_past_the_cap_the_least_recently_used_goes),
    control("an end does not touch", bounds.test_b16_what_was_just_used_stays),
    control("caps evict hard", bounds.test_b17_softly_in_the_background),
    control("the sweep takes all", bounds.test_b18_the_sweep_takes_what_is_idle),
    control("the sweep takes none", bounds.test_b18_the_sweep_takes_what_is_idle),
    control("idle time counts for all", bounds.test_b19_no_timestamp_no_sweep),
    control("a cap where none is set", bounds.test_b20_no_cap_no_eviction),
    control("an end does not touch", bounds.test_b21_the_order_can_be_read),
    control("a victim is replaced", mid_turn.test_b22_only_the_excess_window_is_at_risk),
    control("victims mid-turn", mid_turn.test_b22_only_the_excess_window_is_at_risk),
    control("a victim is replaced", mid_turn.test_b23_the_second_oldest_goes),
    control("told every time", mid_turn.test_b24_all_mid_turn_nothing_goes_and_one_warning),
    control("told never", mid_turn.test_b24_all_mid_turn_nothing_goes_and_one_warning),
    control("a build counts at once", mid_turn.test_b25_a_build_blocks_nobody_and_does_not_count),
    control("idle mid-turn", mid_turn.test_b26_the_sweep_skips_what_is_mid_turn),
    control("an eviction does not wait", mid_turn.test_b27_the_client_stays_usable_whatever_is_evicted),
    control("an end enforces nothing", mid_turn.test_b27a_the_end_of_a_turn_brings_the_cap_back),
    control("the newest goes", spillover.test_b28_one_more_than_the_cap),
    control("told never", spillover.test_b29_every_slot_mid_turn_and_one_more),
    control("no cap", spillover.test_b30_eight_at_once_end_at_exactly_the_cap),
    control("one too many", spillover.test_b30_eight_at_once_end_at_exactly_the_cap),
    control("no snapshot", spillover.test_b31_the_next_message_builds_a_fresh_agent),
    control("soft is hard", release.test_b32_soft_release_kills_no_processes, release=release._cap),
    control("soft is hard", release.test_b33_soft_release_leaves_sandbox_and_browser, release=release._idle),
    control("hard is soft", release.test_b35_hard_close_tears_down_the_task_state, reason="reset", where="elsewhere"),
    control("soft is hard", release.test_b36_after_an_idle_eviction_the_task_state_is_inherited, where="here"),
    control("stale agents are warm", lessons.test_h1_also_when_every_message_is_lost),
    control("nothing is ever warm", lessons.test_h1_a_stale_agent_is_rebuilt_and_only_a_stale_one),
    control("lease keys do not count", lessons.test_h2_turns_of_one_conversation_are_serialised),
    control("a lease stays where it was", lessons.test_h2_the_lease_moves_when_the_id_rotates),
    control("any turn may end", lessons.test_h3_a_late_unwind_ends_nothing_newer, where="elsewhere"),
    control("no snapshot", lessons.test_h5_what_must_outlive_the_agent_goes_first),
    control("nobody takes endings over", lessons.test_h5_the_end_of_a_session_outlives_its_worker, "processes"),
    control("an eviction does not wait", lessons.test_h6_an_eviction_mid_turn_waits_for_the_end, modes=("soft",)),
    control("nobody is busy", lessons.test_h8_a_timed_out_wait_holds_nothing),
    control("a lease for ever", lessons.test_h9_a_killed_process_frees_its_sessions, "processes"),
    control("nobody is busy", lessons.test_h9_a_renewed_turn_outlives_its_lease),
    control("a lease for ever", lessons.test_h9_a_paused_process_is_no_owner, "processes"),
]


@pytest.mark.parametrize(("fleet", "test", "arguments"), IN_LUA, indirect=["fleet"])
async def test_a_broken_script_turns_its_test_red(
    fleet: Fleet, test: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    with pytest.raises(RED):
        await test(fleet, **arguments)


def _at_once(self: Releases, what: str, action: Callable[[], None]) -> Future[None]:
    """A release on the path of whoever asks for it."""
    done: Future[None] = Future()
    action()
    done.set_result(None)
    return done


def _kept(self: Copies, copy: Copy, take: Any = Copies._take, kept: Any = []) -> Copy | None:  # noqa: B006
    """A list that holds on to every agent that goes."""
    kept.append(copy.agent)
    return take(self, copy)  # type: ignore[no-any-return]


def _any_generation(self: Engine, message: Message, on_message: Any = Engine.on_message) -> None:
    """An eviction that meets whatever copy of the session there is."""
    copy = self.copies._newest.get(message.session)
    if copy and message.mode in ("soft", "hard"):
        self.departures.discard(copy.session, copy.generation, message.mode, message.reason)
    else:
        on_message(self, message)


def _pinless(self: Copies, copy: Copy) -> Copy | None:
    """A copy that goes although somebody uses it."""
    found = self._copies.pop((copy.session, copy.generation), None)
    if found and self._newest.get(copy.session) is copy:
        del self._newest[copy.session]
    return found


def _kept_alive(self: Running, turn: TurnState, add: Any = Running.add, kept: Any = []) -> None:  # noqa: B006
    """A list that holds on to every turn, so that none is ever dropped."""
    kept.append(turn)
    add(self, turn)


def _prefix_only(value: Any, path: str, canonical: Any = signature._canonical) -> bytes:
    """A signature that only the first characters of anything enter."""
    return canonical(value[:16] if isinstance(value, str) else value, path)  # type: ignore[no-any-return]


def _as_written(value: Any, path: str) -> bytes:
    """A signature that depends on the order of keys."""
    return repr(value).encode()


def _all_of_it(config: Any, key: Any) -> str:
    """A signature of everything that came with the message."""
    return config_signature("", extra={"config": repr(config)})


def _without(name: str) -> Callable[..., str]:
    """A signature that one argument does not enter."""
    return lambda **config: config_signature(**config | {name: None})


def _busy_whatever_it_is(error: Exception, place: str) -> GreenroomError:
    return SessionBusy("some session")


provider, user = {"name": "provider"}, {"extra": {"user_id": "42"}}
by_cap = {"release": release._cap}
IN_PYTHON = [
    (signature, "_canonical", _as_written, signing.test_b1_the_same_config_signs_the_same_whatever_the_order, {}),
    (signing, "config_signature", _without("model"), signing.test_b2_another_model_signs_differently, {}),
    (signature, "_canonical", _prefix_only, signing.test_b3_the_whole_api_key_counts, {}),
    (signing, "config_signature", _without("runtime"), signing.test_b4_another_route_signs_differently, provider),
    (signing, "config_signature", _without("toolsets"), signing.test_b5_another_set_of_toolsets_signs_differently, {}),
    (turns, "sign", _all_of_it, signing.test_b6_reasoning_and_callbacks_are_no_part_of_it, {}),
    (signing, "config_signature", _without("extra"), signing.test_b6a_extra_values_that_are_baked_in_sign, user),
    (Releases, "submit", _at_once, bounds.test_b17_softly_in_the_background, {}),
    (Copies, "_take", _pinless, mid_turn.test_b27_also_when_redis_took_the_session_away, {}),
    (Lifecycle, "release", Lifecycle.close, release.test_b32_soft_release_kills_no_processes, by_cap),
    (Lifecycle, "release", lambda *_: None, release.test_b34_soft_release_closes_and_drops_the_client, {}),
    (Copies, "_take", _kept, release.test_b34_soft_release_closes_and_drops_the_client, {}),
    (Engine, "on_message", _any_generation, lessons.test_h3_a_message_about_an_old_generation_does_nothing, {}),
    (Releases, "submit", _at_once, lessons.test_h4_a_teardown_that_hangs_is_in_nobody_s_way, {"mode": "soft"}),
    (Releases, "check", lambda _: None, lessons.test_h4_a_teardown_has_a_time_limit, {}),
    (Copies, "_take", _kept, lessons.test_h7_a_released_agent_frees_its_history, {"how": "soft"}),
    (Running, "add", _kept_alive, lessons.test_h9_a_turn_that_was_dropped_is_not_renewed, {}),
    (link, "translate", _busy_whatever_it_is, lessons.test_h10_also_on_fakeredis, {"kind": "sync", "room": "control"}),
]  # fmt: skip


@pytest.mark.parametrize("fleet", [("sync", "real", NONE)], indirect=True, ids=["sync-real"])
@pytest.mark.parametrize(
    ("where", "name", "wrong", "test", "arguments"),
    IN_PYTHON,
    ids=[f"{name}-{test.__name__.split('_')[1]}" for _, name, _, test, _ in IN_PYTHON],
)
async def test_a_broken_method_turns_its_test_red(
    fleet: Fleet,
    where: Any,
    name: str,
    wrong: Any,
    test: Callable[..., Any],
    arguments: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "fleet" in inspect.signature(test).parameters:
        arguments = arguments | {"fleet": fleet}

    async def run() -> None:
        result = test(**arguments)
        if inspect.isawaitable(result):
            await result

    with monkeypatch.context() as patched:
        patched.setattr(where, name, wrong)
        with pytest.raises(RED):
            await run()
