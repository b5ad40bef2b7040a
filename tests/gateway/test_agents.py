"""What agents and builders may do wrong, and how they are stopped: it ends their turn, and no more."""

from __future__ import annotations

import json
import signal

import httpx
import pytest
from support.replicas import Street, at_once, is_problem


def test_what_an_agent_does_wrong_is_told_without_its_secrets(street: Street) -> None:
    [one] = street.open()
    is_problem(one.turn("s", "/fail"), 500, "agent-failed")
    is_problem(one.turn("s", "/bytes"), 500, "agent-failed")
    is_problem(one.turn("w", config={"model": "w", "voice": "wrong"}), 500, "agent-failed")
    body = is_problem(one.turn("b", config={"model": "broken"}), 500, "build-failed")
    assert "secret" not in json.dumps(body)
    with one.stream("s", "/fail") as got:
        (first, piece), (last, problem) = got
    assert (first, piece, last) == ("piece", {"piece": "so far "}, "error")
    assert problem["code"] == "agent-failed"
    assert "hunter2" not in json.dumps(problem)
    log = one.log()
    assert "hunter2" in log, "the operator is told all of it"
    assert "no such model" in log
    assert 'in _pieces\n    raise RuntimeError("secret' in log
    assert one.turn("s", "/half").json()["reply"] == "?"
    assert one.turn("s", "still there").json()["fresh"] is False


ABRUPT = ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration", "StopAsyncIteration", "BaseException")


@pytest.mark.parametrize("voice", ["abrupt", "abruptly", "halfway"])
def test_whatever_an_agent_raises_ends_its_turn_and_no_more(street: Street, voice: str) -> None:
    """A tool that calls sys.exit(), a `next` too many: each ends the turn with an answer, and the replica serves on."""
    [one] = street.open()
    one.client.timeout = httpx.Timeout(10.0)
    with one.stream("bystander", "/drip 30 0.1") as got:
        next(got)
        for raised in ABRUPT:
            body = is_problem(one.turn("s", raised, config={"model": "m", "voice": voice}), 500, "agent-failed")
            assert "secret" not in str(body)
            assert one.turn("s", "after").json()["reply"] == "after"
        assert list(got)[-1][0] == "end"
    one.signal(signal.SIGTERM)
    assert one.ended() == 0, one.log()


def test_whatever_a_builder_raises_ends_its_turn_and_no_more(street: Street) -> None:
    [one] = street.open()
    one.client.timeout = httpx.Timeout(10.0)
    for raised in ABRUPT:
        answer = one.turn("s", config={"model": "broken", "raises": raised})
        failed = raised in ("SystemExit", "StopIteration", "StopAsyncIteration")
        body = is_problem(answer, 500, "build-failed" if failed else "internal")
        assert "secret" not in str(body)
        assert one.turn("s", "after").json()["fresh"] is True
        one.reset("s")
    one.signal(signal.SIGTERM)
    assert one.ended() == 0, one.log()


@pytest.mark.parametrize("voice", ["flow", "pieces", "later", "lazy"])
def test_an_agent_that_cannot_stop_is_stopped(street: Street, voice: str) -> None:
    [one] = street.open()
    config = {"model": voice, "voice": voice, "polite": False}
    stopped, after = at_once(
        lambda: one.turn("s", "/drip 400", config=config),
        lambda: one.turn("s", "now me", config=config, on_busy="interrupt"),
    )
    is_problem(stopped, 409, "interrupted")
    assert (after.json()["reply"], after.json()["fresh"]) == ("now me", False)


@pytest.mark.parametrize("polite", [True, False])
def test_a_turn_that_waits_for_a_thread_can_be_stopped(street: Street, polite: bool) -> None:
    [one] = street.open(run_threads=1)
    config = {"model": "m", "voice": "text", "polite": polite}
    slow, stopped, after = at_once(
        lambda: one.turn("a", "/sleep 2", config=config),
        lambda: one.turn("b", "/sleep 20", config=config),
        lambda: one.turn("b", "me", config=config, on_busy="interrupt"),
    )
    assert (slow.json()["reply"], after.json()["reply"]) == ("slept", "me")
    is_problem(stopped, 409, "interrupted")
    assert street.begun() == ["/sleep 2", "me"]


def test_an_agent_that_cancels_itself_was_not_interrupted(street: Street) -> None:
    [one] = street.open()
    is_problem(one.turn("s", config={"model": "m", "voice": "oneself"}), 500, "agent-failed")
    assert one.turn("s").status_code == 200


@pytest.mark.parametrize("voice", ["flood", "whole"])
@pytest.mark.parametrize("polite", [True, False])
def test_a_reply_has_an_end(street: Street, voice: str, polite: bool) -> None:
    [one] = street.open(reply_limit=50_000)
    config = {"model": "m", "voice": voice, "polite": polite}
    body = is_problem(one.turn("s", "50001", config=config), 500, "agent-failed")
    assert "ReplyTooLong" in body["detail"]
    if voice == "whole":
        assert one.turn("s", "50000", config=config).json()["reply"] == "x" * 50_000
    assert street.redis.zcard(street.key("leases")) == 0


def test_a_builder_that_gives_no_agent(street: Street) -> None:
    [one] = street.open()
    config = {"model": "m", "gives": "nothing"}
    for _ in range(2):
        body = is_problem(one.turn("s", config=config), 500, "build-failed")
        assert body["detail"] == "the builder gave a NoneType, which has no run(message)"
    assert street.redis.zcard(street.key("lru")) == 0, "it is not kept"
    assert one.turn("s").status_code == 200


def test_an_agent_is_one_sessions_own(street: Street) -> None:
    [one] = street.open()
    config = {"model": "m", "shared": True}
    first, second = at_once(
        lambda: one.turn("a", "/sleep 1", config=config), lambda: one.turn("b", "hello", config=config)
    )
    assert first.json()["reply"] == "slept"
    assert "one of its own" in is_problem(second, 500, "build-failed")["detail"]
