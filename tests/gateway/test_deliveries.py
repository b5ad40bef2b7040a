"""A message that is sent again, to any replica, gets one turn; and a line has an end."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
from support import wait_until
from support.replicas import Street, at_once, is_problem

KEY = {"Idempotency-Key": "order-66"}


def test_a_message_sent_again_gets_its_first_answer(street: Street) -> None:
    one, other, third = street.open(3)
    first = one.turn("s", "/drip 3", headers=KEY)
    assert first.status_code == 200
    assert "idempotency-replayed" not in first.headers
    for replica in (one, other, third):
        again = replica.turn("s", "/drip 3", headers=KEY, on_busy="reject")
        assert again.json() == first.json()
        assert again.headers["idempotency-replayed"] == "true"
        with replica.stream("s", "/drip 3", headers=KEY) as got:
            assert list(got) == [("piece", {"piece": "0 1 2 "}), ("end", first.json())]
    assert len(street.notes("begin")) == 1
    assert other.turn("s", "/drip 3").json()["reply"] == "0 1 2 "
    assert other.turn("t", "/drip 3", headers=KEY).json()["session"] == "t"
    assert len(street.notes("begin")) == 3, "without the key, or on another session, it is another message"


@pytest.mark.parametrize("on_busy", ["wait", "reject", "interrupt"])
def test_a_repeat_waits_for_the_turn_that_runs(street: Street, on_busy: str) -> None:
    one, other = street.open(2)
    first, again, waited = at_once(
        lambda: one.turn("s", "/sleep 1", headers=KEY),
        lambda: other.turn("s", "/sleep 1", headers=KEY, on_busy=on_busy),
        lambda: other.turn("s", "x"),
    )
    assert first.json()["reply"] == "slept"
    assert again.json() == first.json()
    assert waited.json()["reply"] == "x"
    assert len(street.notes("begin")) == 2


def test_a_message_that_failed_runs_again(street: Street) -> None:
    one, other = street.open(2)
    for replica in (one, other):
        is_problem(replica.turn("s", "/fail", headers=KEY), 500, "agent-failed")
    assert len(street.notes("begin")) == 2


def test_a_message_whose_replica_was_killed_runs_again(street: Street) -> None:
    one, other = street.open(2)

    def kill() -> None:
        wait_until(lambda: bool(street.notes("begin")))
        one.signal(signal.SIGKILL)

    def again() -> Any:
        began = time.monotonic()
        return other.turn("s", "/sleep 1", headers=KEY), time.monotonic() - began

    _, _, (answer, took) = at_once(lambda: one.turn("s", "/sleep 1", headers=KEY), kill, again)
    assert answer.json()["reply"] == "slept"
    assert answer.json()["worker"] == other.worker
    assert took < 1.0 + 3.0 + 1.0, "its turn, the lease of the one before, and a second"
    assert len(street.notes("begin")) == 2


def test_keys_that_are_none(street: Street) -> None:
    [one] = street.open()
    for key in ("", "a b", "x" * 256, "schlüssel".encode()):
        body = is_problem(one.turn("s", headers={"Idempotency-Key": key}), 400, "invalid-request")
        assert "1–255 visible ASCII" in body["detail"]
    twice = one.client.post(one.path("s"), json={"message": "x"}, headers=[*KEY.items(), ("Idempotency-Key", "b")])
    is_problem(twice, 400, "invalid-request")
    assert street.notes("build") == []
    assert one.turn("s", headers={"Idempotency-Key": "!" * 255}).status_code == 200


def test_a_key_is_one_message(street: Street) -> None:
    one, other = street.open(2)
    one.turn("s", "this", headers=KEY)
    is_problem(other.turn("s", "that", headers=KEY), 409, "key-reused")
    assert [note["message"] for note in street.notes("begin")] == ["this"]


def test_an_answer_that_is_too_long_to_be_kept_is_not_given_twice(street: Street) -> None:
    one, other = street.open(2, answer_limit=500)
    assert one.turn("s", "x" * 1000, headers=KEY).json()["reply"] == "x" * 1000
    is_problem(other.turn("s", "x" * 1000, headers=KEY), 409, "answered")
    assert len(street.notes("begin")) == 1


def test_a_line_has_an_end(street: Street) -> None:
    one, other = street.open(2, line=2)
    *served, refused = at_once(
        lambda: one.turn("s", "/sleep 2"),
        lambda: one.turn("s", "first"),
        lambda: other.turn("s", "second"),
        lambda: other.turn("s", "third"),
    )
    assert [answer.json()["reply"] for answer in served] == ["slept", "first", "second"]
    body = is_problem(refused, 429, "line-full")
    assert (body["ahead"], body["holder"]) == (2, one.worker)
    assert int(refused.headers["retry-after"]) >= 1
