"""A message reaches the warm agent from any replica, and has one turn whatever becomes of the way there."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from support import wait_until
from support.proxy import Proxy
from support.replicas import Replica, Street, at_once, is_problem

from coordinator.errors import SessionElsewhere
from workers.gateway import hops
from workers.gateway.app import event
from workers.gateway.exchange import Exchange
from workers.gateway.requests import Message

ODD = "one\u2028two\u2029three\x85four\r\nfive\n\nevent: end\ndata: {}\n\n🙂"


@contextmanager
def behind_proxy(street: Street, *options: str, **environ: Any) -> Iterator[tuple[Replica, Proxy]]:
    """A replica that the others reach through a proxy."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    with Proxy(port) as proxy:
        there = f"http://127.0.0.1:{proxy.port}"
        yield street.open(1, "--port", str(port), "--advertise", there, *options, **environ)[0], proxy


def test_a_message_reaches_the_warm_agent_from_any_replica(street: Street) -> None:
    one, other, third = street.open(3, token="fleet")
    home = one.turn("s", "/prompt").json()
    assert (home["worker"], home["fresh"], home["forwarded"]) == (one.worker, True, False)
    for replica in (other, third):
        answer = replica.turn("s", "/prompt").json()
        assert answer["reply"] == home["reply"]
        assert (answer["worker"], answer["fresh"], answer["forwarded"]) == (one.worker, False, True)
        with replica.stream("s", "/drip 3") as got:
            *pieces, (name, last) = list(got)
        assert [value["piece"] for _, value in pieces] == ["0 ", "1 ", "2 "]
        assert (name, last["reply"], last["forwarded"]) == ("end", "0 1 2 ", True)
    for session in ("a/b%2F ☂", "x" * 512):
        answers = [replica.turn(session, ODD).json() for replica in (one, other, third)]
        assert {(answer["session"], answer["reply"]) for answer in answers} == {(session, ODD)}
        assert [answer["forwarded"] for answer in answers].count(True) == 2
    assert len(street.notes("build")) == 3
    assert 'greenroom_messages_total{outcome="forwarded"}' in other.get("/metrics").text
    assert "HTTP Request" not in other.log(), "no line for each message"


def test_a_piece_comes_through_a_hop_when_it_is_there(street: Street) -> None:
    one, other = street.open(2)
    one.turn("s")
    began = time.monotonic()
    with other.stream("s", "/drip 20") as got:
        next(got)
        first = time.monotonic() - began
        assert len(list(got)) == 20
    assert first < (time.monotonic() - began) / 2


def test_what_goes_wrong_there_is_told_here(street: Street) -> None:
    one, other = street.open(2, line=1, body_limit=100_000)
    one.turn("s")
    is_problem(other.turn("s", "/fail"), 500, "agent-failed")
    with other.stream("s", "/fail") as got:
        (first, piece), (last, problem) = got
    assert (first, piece, last, problem["code"]) == ("piece", {"piece": "so far "}, "error", "agent-failed")
    body = is_problem(other.turn("s", config={"model": "broken"}), 500, "build-failed")
    assert "secret" not in str(body)
    one.turn("s")
    runs = len(street.begun())
    slow, waits, full, rejected = at_once(
        lambda: one.turn("s", "/sleep 1"),
        lambda: other.turn("s", "waits"),
        lambda: other.turn("s", "full"),
        lambda: other.turn("s", "rejected", on_busy="reject"),
    )
    assert (slow.json()["reply"], waits.json()["reply"]) == ("slept", "waits")
    assert waits.json()["forwarded"] is True
    body = is_problem(full, 429, "line-full")
    assert (body["ahead"], body["holder"], full.headers["retry-after"]) == (1, one.worker, str(body["retry_after"]))
    body = is_problem(rejected, 409, "busy")
    assert (body["holder"], body["why"], body["ahead"]) == (one.worker, "turn", 1)
    assert rejected.headers["retry-after"] == "1"
    assert street.begun()[runs:] == ["/sleep 1", "waits"]
    stopped, after = at_once(
        lambda: other.turn("s", "/sleep 20"), lambda: other.turn("s", "now me", on_busy="interrupt")
    )
    assert (stopped.json()["reply"], after.json()["reply"], after.json()["forwarded"]) == ("stopped", "now me", True)


def test_a_key_is_known_through_a_hop(street: Street) -> None:
    one, other, third = street.open(3)
    key = {"Idempotency-Key": "once"}
    one.turn("s")
    first = other.turn("s", "/sleep 1", headers=key)
    assert first.json()["forwarded"] is True
    assert "idempotency-replayed" not in first.headers
    for replica in (one, other, third):
        again = replica.turn("s", "/sleep 1", headers=key)
        assert again.json() == first.json()
        assert again.headers["idempotency-replayed"] == "true"
    is_problem(third.turn("s", "else", headers=key), 409, "key-reused")
    key = {"Idempotency-Key": "twice"}
    both = at_once(*(lambda at=at: at.turn("s", "/sleep 2", headers=key) for at in (other, third)))
    assert both[0].json() == both[1].json()
    assert sorted("idempotency-replayed" in answer.headers for answer in both) == [False, True]
    assert street.begun() == ["hello", "/sleep 1", "/sleep 2"]


def test_a_cold_session_goes_where_most_room_is(street: Street) -> None:
    one, other, third = street.open(3, limit_worker=20)
    answers = [one.turn(f"s{number}").json() for number in range(30)]
    homes = [answer["worker"] for answer in answers]
    assert sorted(homes.count(replica.worker) for replica in (one, other, third)) == [10, 10, 10]
    assert all(answer["forwarded"] is (answer["worker"] != one.worker) for answer in answers)
    assert len(street.notes("build")) == 30


def test_cold_sessions_that_come_at_once_go_to_different_replicas(street: Street) -> None:
    """What is being built takes room: else the emptiest replica would get all of them."""
    fleet = street.open(3, limit_worker=20)
    config = {"model": "m", "build": 3.0}
    homes = [replica.turn(f"warm{number}").json()["worker"] for number, replica in enumerate(fleet[:2])]
    calls = [lambda n=n: fleet[n % 3].turn(f"s{n}", config=config).json() for n in range(10)]
    homes += [answer["worker"] for answer in at_once(*calls)]
    assert [homes.count(replica.worker) for replica in fleet] == [4, 4, 4]


@pytest.mark.parametrize("at_owner", [False, True])
def test_a_message_interrupts_one_turn_wherever_it_ends_up(street: Street, at_owner: bool) -> None:
    """It stops the turn that it meets, and not the one that stood in line before it when its replica goes."""
    one, other = street.open(2)
    one.turn("s")
    config = {"model": "m", "polite": False, "voice": "text"}  # asked to stop, it ends when it ends
    results = at_once(
        lambda: one.turn("s", "/sleep 2", config=config),
        lambda: other.turn("s", "/sleep 3"),
        lambda: (one if at_owner else other).turn("s", "now me", on_busy="interrupt"),
        lambda: one.signal(signal.SIGTERM),
    )
    assert [answer.status_code for answer in results[:3]] == [200, 200, 200], [answer.text for answer in results[:3]]
    assert [answer.json()["reply"] for answer in results[1:3]] == ["slept", "now me"]
    assert street.begun("s")[1:] == ["/sleep 2", "/sleep 3", "now me"]


@pytest.mark.parametrize(
    ("status", "said", "never_ran"),
    [
        (503, {"code": "draining", "detail": ""}, True),
        (421, {"code": "misdirected", "detail": ""}, True),
        (200, [("error", {"code": "draining", "detail": ""})], True),
        (200, [("turn", {"fence": 7}), ("error", {"code": "draining", "detail": ""})], False),
        (200, [], False),
        (503, {"code": "unavailable", "detail": ""}, False),
        (502, "what?", False),
        (502, {"error": "no replica's words"}, False),
    ],
)
async def test_what_never_ran_there_is_another_delivery_here(status: int, said: Any, never_ran: bool) -> None:
    """However long it waited there: of a delivery it is known for a minute only which turn it had."""

    async def there(request: httpx.Request) -> httpx.Response:
        events = b"".join(event(name, value) for name, value in said) if status == 200 else json.dumps(said).encode()
        return httpx.Response(status, content=events)

    neighbours = hops.Neighbours("here", "", 5.0)
    await neighbours.close()
    neighbours._client = httpx.AsyncClient(transport=httpx.MockTransport(there))
    exchange, begun = Exchange(), list[int]()
    to = SessionElsewhere("there", "http://there", instance="1")
    answer = await neighbours.forward(Message("s", "x", on_busy="interrupt"), to, "0" * 28, 1.0, exchange, begun.append)
    await neighbours.close()
    assert answer == hops.Untaken(never_ran)
    assert exchange.interrupted is (status != 421)


def test_without_affinity_a_session_is_where_its_message_arrives(street: Street) -> None:
    one, other = street.open(2, "--no-affinity")
    for number in range(4):
        answer = one.turn(f"s{number}").json()
        assert (answer["worker"], answer["forwarded"]) == (one.worker, False)
    before = one.turn("s0", "/prompt").json()
    moved = other.turn("s0", "/prompt").json()
    assert (moved["worker"], moved["fresh"], moved["forwarded"]) == (other.worker, True, False)
    assert moved["reply"] == before["reply"], "its prompt moved with it"


async def test_events_are_read_whole_however_they_come() -> None:
    sent = [("turn", {"fence": 7}), ("piece", {"piece": ODD}), ("end", {"reply": ODD})]
    data = b": \n\n" + b"".join(event(name, value) for name, value in sent)

    class InPieces(httpx.AsyncByteStream):
        def __init__(self, size: int) -> None:
            self._size = size

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for at in range(0, len(data), self._size):
                yield data[at : at + self._size]

    for size in (1, 2, 3, 5, 64, len(data)):
        assert [one async for one in hops._events(httpx.Response(200, stream=InPieces(size)))] == sent


# -- an owner that does not answer


def test_an_owner_that_is_dead_is_not_waited_for(street: Street) -> None:
    one, other = street.open(2)
    one.turn("s")
    one.signal(signal.SIGKILL)
    one.ended()
    began = time.monotonic()
    answer = other.turn("s").json()
    assert (answer["worker"], answer["forwarded"]) == (other.worker, False)
    assert time.monotonic() - began < 1.5
    assert f"{one.worker} is left alone" in other.log()
    assert "Traceback" not in other.log()


def test_an_owner_that_stands_still_is_not_waited_for(street: Street) -> None:
    """And what was passed on to it is run once, also when it comes to again."""
    one, other = street.open(2, hop_for=1.0)
    one.turn("s")
    one.signal(signal.SIGSTOP)
    began = time.monotonic()
    answer = other.turn("s", "passed on").json()
    assert (answer["worker"], answer["reply"]) == (other.worker, "passed on")
    assert time.monotonic() - began < 3.0
    began = time.monotonic()
    for session in ("a", "b", "c"):  # of which some would be placed there
        assert other.turn(session).json()["worker"] == other.worker
    assert time.monotonic() - began < 0.9, "it was silent a moment ago"
    one.signal(signal.SIGCONT)
    wait_until(lambda: one.get("/readyz").status_code == 200)
    time.sleep(0.5)
    assert street.begun("s").count("passed on") == 1


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("key", "policy"), [(None, "finish"), ("once", "finish"), (None, "interrupt")])
def test_a_message_runs_once_also_when_the_way_breaks(
    street: Street, streamed: bool, key: str | None, policy: str
) -> None:
    headers = {"Idempotency-Key": key} if key else {}
    with behind_proxy(street, "--on-disconnect", policy) as (one, proxy):
        [other] = street.open(1, "--on-disconnect", policy)
        one.turn("s")

        def ask() -> Any:
            if not streamed:
                return other.turn("s", "/drip 40", headers=headers).json()
            with other.stream("s", "/drip 40", headers=headers) as got:
                events = list(got)
            assert "".join(value["piece"] for name, value in events if name == "piece") == events[-1][1]["reply"]
            return events[-1][1]

        def cut() -> None:
            wait_until(lambda: len(street.begun()) == 2)
            time.sleep(0.5)
            proxy.cut()

        answer, _ = at_once(ask, cut)
    assert answer["reply"] == "".join(f"{number} " for number in range(40))
    assert (answer["worker"], answer["forwarded"]) == (one.worker, True)
    assert street.begun() == ["hello", "/drip 40"]


def test_a_message_waits_in_line_once_also_when_the_way_breaks(street: Street) -> None:
    with behind_proxy(street) as (one, proxy):
        [other] = street.open()
        one.turn("s")

        def cut() -> None:
            time.sleep(0.5)
            proxy.cut()

        slow, waits, _ = at_once(lambda: one.turn("s", "/sleep 2"), lambda: other.turn("s", "waits"), cut)
    assert (slow.json()["reply"], waits.json()["reply"]) == ("slept", "waits")
    assert street.begun() == ["hello", "/sleep 2", "waits"]


def test_a_turn_that_dies_with_its_owner_is_lost_and_the_session_is_served(street: Street) -> None:
    one, other = street.open(2)
    one.turn("s")

    def kill() -> float:
        wait_until(lambda: len(street.begun()) == 2)
        one.signal(signal.SIGKILL)
        return time.monotonic()

    lost, killed = at_once(lambda: other.turn("s", "/sleep 20"), kill)
    body = is_problem(lost, 503, "turn-lost")
    assert lost.headers["retry-after"] == str(body["retry_after"]) == "1"
    assert other.turn("s", "next").json()["worker"] == other.worker
    assert time.monotonic() - killed < 3.0 + 1.0, "the lease and a second"
    assert street.begun() == ["hello", "/sleep 20", "next"]


# -- who may pass on what


def test_replicas_that_share_no_secret_do_not_serve_each_other(street: Street) -> None:
    [one] = street.open(token="this")
    [other] = street.open(token="that")
    one.turn("s")
    answer = other.turn("s").json()
    assert (answer["worker"], answer["forwarded"]) == (other.worker, False), "it moved"
    assert "forbidden" in other.log()


@pytest.mark.parametrize("token", ["", "fleet"])
def test_a_forged_hop_runs_nothing(street: Street, token: str) -> None:
    [one] = street.open(token=token)
    instance = street.redis.hget(street.key(f"worker:{one.worker}"), "instance")
    hop = f"nobody {one.worker} {instance} {'0' * 28} 1000 0"
    right = {"Greenroom-Token": token} if token else {}
    for headers, status, code in (
        ({"Greenroom-Token": "wrong"}, 403, "forbidden"),
        ({"Greenroom-Hop": hop, "Greenroom-Token": "wrong"}, 403, "forbidden"),
        ({"Greenroom-Hop": hop, "Greenroom-Token": token + "x"}, 403, "forbidden"),
        ({"Greenroom-Hop": hop} if token else None, 403, "forbidden"),
        ({"Greenroom-Hop": "x"} | right, 400, "invalid-request"),
        ({"Greenroom-Hop": ""} | right, 400, "invalid-request"),
        ({"Greenroom-Hop": hop + "0" * 20} | right, 400, "invalid-request"),
        ({"Greenroom-Hop": hop.replace(one.worker, "another")} | right, 421, "misdirected"),
        ({"Greenroom-Hop": hop.replace(instance, "0" * len(instance))} | right, 421, "misdirected"),
        ({"Greenroom-Hop": hop} | right, 503, "turn-lost"),  # a delivery that is far too old
    ):
        if headers is not None:
            is_problem(one.turn("s", headers=headers), status, code)
    twice = [("Greenroom-Hop", hop), ("Greenroom-Hop", hop), *right.items()]
    is_problem(one.client.post(one.path("s"), json={"message": "x"}, headers=twice), 400, "invalid-request")
    assert street.notes("begin") == street.notes("build") == []


def test_what_is_advertised_wrongly_ends_after_one_hop(street: Street) -> None:
    """Each replica says that it is where the other one is."""
    ports = []
    for _ in range(2):
        with socket.create_server(("127.0.0.1", 0)) as found:
            ports.append(found.getsockname()[1])
    [one] = street.open(1, "--port", str(ports[0]), "--advertise", f"http://127.0.0.1:{ports[1]}")
    [other] = street.open(1, "--port", str(ports[1]), "--advertise", f"http://127.0.0.1:{ports[0]}")
    assert one.turn("s").json()["worker"] == one.worker
    assert other.turn("s").json()["worker"] == other.worker
    assert one.turn("s").json()["forwarded"] is False
    assert len(street.begun()) == 3
    assert "check what is advertised" in other.log()


@pytest.mark.parametrize("policy", ["finish", "interrupt"])
def test_a_client_that_hangs_up_behind_a_hop(street: Street, policy: str) -> None:
    one, other = street.open(2, "--on-disconnect", policy)
    one.turn("s")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(other.path("s"), json={"message": "/sleep 2"}, timeout=0.7)
    wait_until(lambda: street.redis.zcard(street.key("leases")) == 0, 1.0 if policy == "interrupt" else 10.0)
    begin, end = street.notes("begin")[1]["at"], street.notes("end")[1]["at"]
    assert (end - begin > 1.9) is (policy == "finish")
    assert one.turn("s", "next").json()["fresh"] is False


def test_a_client_that_hangs_up_in_a_line_behind_a_hop(street: Street) -> None:
    one, other = street.open(2, "--on-disconnect", "interrupt")
    one.turn("s")

    def impatient() -> None:
        httpx.post(other.path("s"), json={"message": "never said"}, timeout=0.3)

    slow, gone = at_once(lambda: one.turn("s", "/sleep 1"), impatient)
    assert slow.status_code == 200
    assert isinstance(gone, httpx.ReadTimeout)
    assert one.turn("s", "x").status_code == 200
    assert street.begun() == ["hello", "/sleep 1", "x"]
