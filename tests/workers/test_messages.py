"""A message that may come twice, a line that is bounded, and where a cold session belongs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from support import wait_until

from coordinator import Coordinator, LeaseLost, Limits, MessageAnswered, SessionBusy, SessionElsewhere
from workers import AsyncWorker, Worker
from workers.turns import new_delivery

Start = Callable[..., Worker]


def say(worker: Worker, answer: str, **asked: Any) -> str:
    """A turn that answers, or the answer it had before."""
    try:
        with worker.turn("s", **asked) as turn:
            turn.answer = answer
            return answer
    except MessageAnswered as before:
        return f"again: {before.answer}"


def delivery(seconds_ago: float = 0.0) -> str:
    return new_delivery(int((time.time() - seconds_ago) * 1000))


def test_a_message_has_one_turn_in_the_fleet(start: Start) -> None:
    one, other = start(), start()
    assert say(one, "först", message="m") == "först"
    assert say(one, "second", message="m") == "again: först"
    assert say(other, "third", message="m") == "again: först"
    assert say(other, "another", message="n") == "another"
    with one.turn("t", message="m") as turn:
        assert turn.fresh, "another session's message is another one"


async def test_a_message_has_one_turn_of_an_async_worker(source: Any, room: str) -> None:
    async with AsyncWorker(lambda request: object(), redis=source, room=room) as worker:
        async with worker.turn("s", message="m") as turn:
            turn.answer = "first"
        with pytest.raises(MessageAnswered, match="answered before") as answered:
            async with worker.turn("s", message="m"):
                pass
        assert answered.value.answer == "first"


def test_a_repeat_waits_for_the_turn_that_runs(start: Start, client: redis.Redis, room: str) -> None:
    one, other = start(lease=30.0), start(lease=30.0)
    got: list[str] = []
    with one.turn("s", message="m") as turn:
        before = threading.Thread(target=lambda: got.append(say(other, "x", message="n")))
        before.start()
        wait_until(lambda: client.zcard(f"greenroom:{{{room}}}:waiting:s") == 1)
        repeat = threading.Thread(target=lambda: got.append(say(other, "second", message="m")))
        repeat.start()
        wait_until(lambda: client.zcard(f"greenroom:{{{room}}}:waiting:s") == 2)
        with pytest.raises(SessionBusy, match="the same message") as busy, other.turn("s", wait=0, message="m"):
            pass
        assert (busy.value.why, busy.value.fence) == ("repeat", turn.fence)
        turn.answer = "first"
    began = time.monotonic()
    before.join()
    repeat.join()
    assert sorted(got) == ["again: first", "x"]
    assert time.monotonic() - began < 5.0, "it was woken"
    assert not client.keys(f"greenroom:{{{room}}}:wait*")


@pytest.mark.parametrize("how", ["fails", "is not built", "is lost"])
def test_a_message_whose_turn_had_no_answer_runs_again(start: Start, client: redis.Redis, room: str, how: str) -> None:
    def build(request: Any) -> object:
        if how == "is not built" and request.config:
            raise OSError
        return object()

    worker = start(build)
    with pytest.raises(Exception), worker.turn("s", {"model": "m"}, message="m") as turn:  # noqa: B017, PT011
        turn.answer = "never given"
        if how == "fails":
            raise OSError
        client.delete(f"greenroom:{{{room}}}:session:s")
        client.zrem(f"greenroom:{{{room}}}:leases", "s")
    assert say(start(), "second", message="m") == "second"


def test_an_answer_that_is_too_long_is_not_kept(start: Start) -> None:
    worker = start(answer_limit=8)
    assert say(worker, "12345678", message="fits") == "12345678"
    assert say(worker, "", message="fits") == "again: 12345678"
    assert say(worker, "123456789", message="long") == "123456789"
    assert say(worker, "", message="long") == "again: "


def test_an_answer_is_kept_for_its_time(start: Start, client: redis.Redis, room: str) -> None:
    worker = start(answer_ttl=7200.0)
    say(worker, "answer", message="named")
    [named] = client.keys(f"greenroom:{{{room}}}:answer:s:*")
    assert 7100 < client.ttl(named) <= 7200
    assert client.hgetall(named)[b"answer"] == b"answer"
    client.delete(named)
    say(worker, "answer", delivery=delivery())
    [passed_on] = client.keys(f"greenroom:{{{room}}}:answer:s:*")
    assert 50 < client.ttl(passed_on) <= 61, "whoever passed it on asks soon, or never"
    client.delete(passed_on)
    say(worker, "answer")
    assert not client.keys(f"greenroom:{{{room}}}:answer:*"), "nobody can ask for it"


@pytest.mark.parametrize("message", ["m", None])
def test_a_delivery_runs_once_whoever_is_asked(start: Start, message: str | None) -> None:
    one, other = start(), start()
    asked: dict[str, Any] = {"message": message, "delivery": delivery()}
    with pytest.raises(OSError, match="broken"), one.turn("s", **asked):
        raise OSError("broken")
    with pytest.raises(LeaseLost, match="without an answer"):
        say(other, "second", **asked)
    asked["delivery"] = delivery()
    assert say(other, "third", **asked) == "third", "it was delivered again"
    assert say(one, "fourth", **asked) == "again: third"


def test_a_delivery_that_is_asked_for_while_it_runs_is_waited_for(start: Start) -> None:
    one, other = start(), start()
    asked = {"delivery": delivery(59.0)}
    with one.turn("s", **asked) as turn:
        with pytest.raises(SessionBusy) as busy, other.turn("s", wait=0, **asked):
            pass
        assert busy.value.why == "repeat"
        turn.answer = "first"
    assert say(other, "second", **asked) == "again: first"


def test_a_delivery_that_died_after_it_ran_for_long_does_not_run_again(
    start: Start, client: redis.Redis, room: str
) -> None:
    """Which turn it had is known for a minute only, unless somebody waits for it."""
    one, other = start(), start()
    asked: dict[str, Any] = {"delivery": delivery()}
    got: list[BaseException] = []

    def wait() -> None:
        try:
            say(other, "second", **asked)
        except LeaseLost as error:
            got.append(error)

    with pytest.raises(OSError, match="broken"), one.turn("s", **asked):
        [known] = client.keys(f"greenroom:{{{room}}}:answer:s:*")
        client.delete(known)  # a minute later
        waits = threading.Thread(target=wait)
        waits.start()
        wait_until(lambda: client.zcard(f"greenroom:{{{room}}}:waiting:s") == 1)
        raise OSError("broken")
    waits.join()
    assert got
    assert not client.keys(f"greenroom:{{{room}}}:wait*")


def test_a_delivery_that_comes_very_late_does_not_run(start: Start) -> None:
    """A worker that was paused for minutes finds it in a socket: somebody else has had to see to it."""
    with pytest.raises(LeaseLost, match="without an answer"):
        say(start(), "late", delivery=delivery(62.0))


@pytest.mark.parametrize("wrong", [{"message": ""}, {"message": 7}, {"delivery": "x"}, {"delivery": "0" * 27}])
def test_names_that_are_none(start: Start, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"message's name|delivery is"):
        start().turn("s", **wrong)


def test_a_line_is_as_long_as_it_may_be(start: Start, client: redis.Redis, room: str) -> None:
    one, other = start(lease=30.0), start(lease=30.0)
    waiting = f"greenroom:{{{room}}}:waiting:s"
    threads = [threading.Thread(target=lambda: say(other, "x", line=2)) for _ in range(2)]
    with one.turn("s"):
        for number, thread in enumerate(threads):
            thread.start()
            wait_until(lambda count=number + 1: client.zcard(waiting) == count)
        with pytest.raises(SessionBusy, match="no place in line") as full, other.turn("s", line=2):
            pass
        assert (full.value.why, full.value.ahead) == ("full", 2)
        assert client.zcard(waiting) == 2
    for thread in threads:
        thread.join()
    assert say(other, "x", line=2) == "x"


def test_a_cold_session_belongs_where_there_is_room(start: Start, look: Coordinator) -> None:
    workers = {one.id: one for one in (start(worker=f"w{n}", address=f"http://w{n}") for n in range(3))}
    addresses = set()
    for n in range(30):
        asked = workers[f"w{n % 2}"]  # the third is never asked
        try:
            with asked.turn(f"s{n}", place=True):
                pass
        except SessionElsewhere as better:
            addresses.add(better.address)
            with workers[better.worker].turn(f"s{n}", delivery=better.delivery):
                pass
    assert {one.worker: one.held for one in look.workers()} == {"w0": 10, "w1": 10, "w2": 10}
    assert addresses == {"http://w2"}


def test_of_workers_with_as_much_room_that_with_fewest_turns_gets_it(start: Start) -> None:
    one, other = start(worker="one"), start(worker="other", address="http://other")
    with one.turn("cold", place=True):
        pass  # of two that are alike, the one that was asked
    with other.turn("b"):
        pass
    with one.turn("cold", place=True), pytest.raises(SessionElsewhere) as better, one.turn("new", place=True):
        pass
    assert better.value.worker == "other"


@pytest.mark.parametrize("why", ["nothing", "no address", "draining", "full", "warm here", "busy"])
def test_a_session_stays_here_if_it_is_not_better_there(start: Start, why: str) -> None:
    here = start(worker="here")
    limits = Limits(worker=2) if why == "full" else None
    there = start(worker="there", address="" if why == "no address" else "http://there", limits=limits)
    for name in ("a", "b"):
        with here.turn(name):
            pass
    if why == "draining":
        there.drain()
    asked = "a" if why == "warm here" else "new"
    if why == "nothing":
        with pytest.raises(SessionElsewhere), here.turn(asked, place=True):
            pass
    elif why == "busy":
        with there.turn("new"), pytest.raises(SessionBusy), here.turn("new", place=True, wait=0):
            pass
    else:
        with here.turn(asked, place=True):
            pass


def test_who_waits_at_a_worker_that_drains_is_sent_elsewhere(start: Start, client: redis.Redis, room: str) -> None:
    """Its turn's end lets the agent go, and the worker takes no session that it does not hold."""
    leaving, staying = start(worker="leaving"), start(worker="staying", address="http://staying")
    with leaving.turn("s"):
        outcome: list[BaseException] = []

        def wait() -> None:
            try:
                with leaving.turn("s", affinity=True, place=True):
                    pass
            except Exception as error:
                outcome.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        wait_until(lambda: client.zcard(f"greenroom:{{{room}}}:waiting:s") == 1)
        leaving.drain()
    thread.join()
    [better] = outcome
    assert isinstance(better, SessionElsewhere), better
    with staying.turn("s", delivery=better.delivery, wait=0):
        pass
