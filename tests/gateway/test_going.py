"""A replica that is told to go: what it waits for, what it passes on, and what it leaves behind."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing

import httpx
import pytest
from support import wait_until
from support.replicas import Street, at_once, is_problem

from workers.gateway.addresses import admit_no_more, listen


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "operator"])
def test_draining(street: Street, how: str) -> None:
    """Readiness goes red, the turn that runs ends, agents are released, the worker is gone, and so is the process."""
    [one] = street.open()
    one.turn("idle")
    with one.stream("s", "/drip 30") as got:
        next(got)
        if how == "operator":
            _cli(street, "drain", one.worker)
        else:
            one.signal(getattr(signal, how))
        wait_until(lambda: one.get("/readyz").status_code == 503, what="red readiness")
        refused = one.turn("new")
        is_problem(refused, 503, "draining")
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["connection"] == "close"
        for _ in range(12):
            next(got)
        assert httpx.get(f"{one.url}/readyz").status_code == 503, "it listens for as long as a turn runs"
        name, last = list(got)[-1]
    assert (name, last["reply"]) == ("end", "".join(f"{number} " for number in range(30)))
    assert one.ended() == 0, one.log()
    assert sorted(note["session"] for note in street.notes("release")) == ["idle", "s"]
    assert street.redis.zcard(street.key("workers")) == street.redis.zcard(street.key("lru")) == 0


def test_a_drain_asked_for_inside_a_turn_does_not_wait_for_itself(street: Street) -> None:
    """H16: the agent ends its own replica."""
    [one] = street.open(1, agent="support.replicas_agents:suicidal")
    assert one.turn("s", "go").json()["reply"] == "gone soon"
    assert one.ended() == 0


def test_a_turn_that_outlasts_the_drain_is_asked_to_stop(street: Street) -> None:
    [one] = street.open(1, "--drain-for", "0.5")
    stopped, _ = at_once(lambda: one.turn("s", "/sleep 30"), lambda: one.signal(signal.SIGTERM))
    assert stopped.json()["reply"] == "stopped"
    assert one.ended() == 0
    assert "1 messages are still being answered" in one.log()


@pytest.mark.parametrize("voice", ["pieces", "flow"])
def test_a_turn_that_does_not_stop_is_left_behind(street: Street, voice: str) -> None:
    """Also where it blocks a thread: Python would wait for that."""
    [one] = street.open(1, "--drain-for", "0.2", agent="support.replicas_agents:stubborn")
    config = {"model": "m", "voice": voice}
    left, _ = at_once(lambda: one.turn("s", "go on", config=config), lambda: one.signal(signal.SIGTERM))
    assert isinstance(left, httpx.HTTPError) or left.status_code == 500, left
    assert one.ended() == 0
    assert "leaving with" in one.log()


def test_a_second_signal_asks_the_turns_to_stop(street: Street) -> None:
    [one] = street.open()

    def insist() -> None:
        one.signal(signal.SIGINT)
        wait_until(lambda: one.get("/readyz").status_code == 503, what="red readiness")
        one.signal(signal.SIGINT)

    at_once(lambda: one.turn("s", "/sleep 30"), insist)
    assert one.ended() == 0, one.log()
    assert [note["session"] for note in street.notes("end")] == ["s"]
    assert "leaving with" not in one.log()


def test_who_waits_to_be_accepted_is_not_cut_off() -> None:
    """When a replica goes: nobody comes after that, and those who had come are heard."""
    with listen("127.0.0.1", 0) as listening, closing(socket.socket()) as late:
        listening.setblocking(True)
        early = socket.create_connection(listening.getsockname())
        early.sendall(b"request")
        assert admit_no_more(listening)
        late.settimeout(0.2)
        with pytest.raises(TimeoutError):
            late.connect(listening.getsockname())
        accepted, _ = listening.accept()
        listening.close()
        with early, accepted:
            assert accepted.recv(100) == b"request"
            accepted.sendall(b"answer")
            assert early.recv(100) == b"answer"


def _cli(street: Street, *words: str) -> None:
    command = [sys.executable, "-m", "coordinator", *words, "--redis", street.source, "--room", street.room]
    subprocess.run(command, check=True, capture_output=True)


# -- with others


def test_a_draining_owner_gives_its_sessions_away(street: Street) -> None:
    """And takes messages as long as it listens: it passes them on."""
    one, other = street.open(2)
    one.turn("busy")
    one.turn("idle")
    with one.stream("busy", "/drip 30") as got:
        next(got)
        one.signal(signal.SIGTERM)
        wait_until(lambda: one.get("/readyz").status_code == 503)
        for replica, session, forwarded in ((other, "idle", False), (one, "idle", True), (one, "new", True)):
            answer = replica.turn(session).json()
            assert (answer["worker"], answer["forwarded"]) == (other.worker, forwarded)
        assert list(got)[-1][0] == "end"
    assert one.ended() == 0
    assert other.turn("busy").json()["worker"] == other.worker


def test_replicas_that_go_at_once_lose_nothing(street: Street) -> None:
    """A replica that goes passes a message on to one that is told to go at this moment: then it asks the next one."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        there = f"http://127.0.0.1:{door.getsockname()[1]}"
        [one], [goes], [stays] = street.open(), street.open(1, "--advertise", there), street.open()
        refused = json.dumps({"code": "draining", "detail": "about to go"}).encode()

        def refuse() -> None:
            caller, _ = door.accept()
            with caller:
                caller.recv(1 << 16)
                street.redis.hset(street.key(f"worker:{goes.worker}"), "state", "draining")
                caller.sendall(b"HTTP/1.1 503 No\r\nContent-Length: %d\r\n\r\n%b" % (len(refused), refused))

        refusing = threading.Thread(target=refuse)
        refusing.start()
        stays.turn("has one already")
        with one.stream("long", "/drip 30 0.1") as got:
            next(got)
            one.signal(signal.SIGTERM)
            wait_until(lambda: one.get("/readyz").status_code == 503)
            answer = one.turn("new").json()
            assert list(got)[-1][0] == "end"
        refusing.join()
    assert (answer["worker"], answer["forwarded"]) == (stays.worker, True)


def test_a_replica_that_goes_leaves_out_who_is_silent(street: Street) -> None:
    """Though there is most room: it cannot take the message itself."""
    [one], [silent], [stays] = street.open(1, hop_for=1.0), street.open(), street.open()
    stays.turn("has one already")
    silent.signal(signal.SIGSTOP)
    with one.stream("long", "/drip 40 0.1") as got:
        next(got)
        one.signal(signal.SIGTERM)
        wait_until(lambda: one.get("/readyz").status_code == 503)
        answer = one.turn("new")
        assert (answer.status_code, answer.json().get("worker")) == (200, stays.worker), answer.text
        assert list(got)[-1][0] == "end"


def test_a_replica_that_goes_waits_for_what_it_passed_on(street: Street) -> None:
    one, other = street.open(2)
    one.turn("s")
    answer, _ = at_once(lambda: other.turn("s", "/sleep 2"), lambda: other.signal(signal.SIGTERM))
    assert (answer.json()["reply"], answer.json()["forwarded"]) == ("slept", True)
    assert other.ended() == 0
