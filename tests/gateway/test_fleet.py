"""A fleet under load: replicas that are replaced one by one, one that is killed, and one with many turns at once."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections import Counter

import httpx
import pytest
from support import wait_until
from support.crowd import SESSIONS, Crowd, Sent
from support.replicas import Replica, Street


def prompts(replica: Replica) -> dict[str, str]:
    return {session: replica.turn(session, "/prompt").json()["reply"] for session in SESSIONS}


def ran_once(street: Street, sent: list[Sent]) -> None:
    """Each message that was answered had one turn, and no other had two."""
    begun = Counter(note["message"] for note in street.notes("begin"))
    assert all(begun[one.message] == 1 or (one.failed and one.message not in begun) for one in sent), begun


def took_turns(street: Street) -> None:
    """No two turns of a session overlapped, and its fences rise."""
    for session in SESSIONS:
        notes = sorted(street.notes("begin", session) + street.notes("end", session), key=lambda note: note["at"])
        assert [note["what"] for note in notes] == ["begin", "end"] * (len(notes) // 2), session
        fences = [note["fence"] for note in notes if note["what"] == "begin"]
        assert fences == sorted(set(fences))


def test_a_rolling_restart_loses_nothing(street: Street) -> None:
    """Six clients talk on while each of three replicas is replaced: no message fails, each replica exits 0, and a
    session's system prompt is what it was, to the byte."""
    ports = []
    for _ in range(3):
        with socket.create_server(("127.0.0.1", 0)) as found:
            ports.append(str(found.getsockname()[1]))
    fleet = [street.open(1, "--port", port, token="t")[0] for port in ports]
    first = prompts(fleet[0])
    with Crowd(fleet) as crowd:
        crowd.answered(60)
        for place, port in enumerate(ports):
            old = fleet[place]
            old.signal(signal.SIGTERM)
            assert old.ended() == 0, old.log()
            [fleet[place]] = street.open(1, "--port", port, token="t")
            crowd.answered(60)
    assert [one for one in crowd.sent if one.failed] == []
    assert prompts(fleet[1]) == first
    ran_once(street, crowd.sent)
    took_turns(street)
    homes = {one.answer["worker"] for one in crowd.sent[-60:]}
    assert homes <= {replica.worker for replica in fleet}
    assert "Traceback" not in "".join(replica.log() for replica in street.replicas)


def test_a_kill_costs_the_turns_that_ran_there(street: Street) -> None:
    fleet = street.open(3, token="t")
    first = prompts(fleet[0])
    with Crowd(fleet) as crowd:
        crowd.answered(100)
        victim = fleet[0]
        killed = time.time()
        victim.signal(signal.SIGKILL)
        victim.ended()
        wait_until(lambda: time.time() > killed + 6.0)
    for one in crowd.sent:
        if one.failed:
            hit = one.to == victim.worker and one.done < killed + 1.0
            lost = "turn-lost" in one.failed and one.done < killed + 4.0
            assert hit or lost, one
            assert one.at < killed + 0.1, one
    failed = [one for one in crowd.sent if one.failed]
    assert len(failed) <= 6, failed
    ran_once(street, crowd.sent)
    for session in SESSIONS:
        after = [one.done for one in crowd.sent if one.session == session and one.at > killed and not one.failed]
        assert min(after, default=killed) < killed + 3.0 + 1.0, session
    assert prompts(fleet[1]) == first, "they moved with their snapshots"


@pytest.mark.parametrize(("voice", "threads"), [("flow", 64), ("pieces", 200)])
async def test_two_hundred_streams_renew_on_time(street: Street, voice: str, threads: int) -> None:
    """Of leases of three seconds none comes near its end, while each turn takes more than two of them."""
    [one] = street.open(1, run_threads=threads)
    body = {"message": "/drip 25 0.3", "config": {"model": voice, "voice": voice}}
    least: list[float] = []

    async def turn(client: httpx.AsyncClient, number: int) -> int:
        last = b""
        headers = {"Accept": "text/event-stream"}
        async with client.stream("POST", one.path(f"s{number}"), json=body, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            async for data in response.aiter_bytes():
                last = (last + data)[-10_000:]
        assert json.loads(last.rpartition(b"event: end\ndata: ")[2])["reply"] == "".join(f"{n} " for n in range(25))
        return 1

    async def watch() -> None:
        while True:
            seconds, micros = street.redis.time()
            now = seconds + micros / 1e6
            scores = [score for _, score in street.redis.zrange(street.key("leases"), 0, -1, withscores=True)]
            least.append(min(scores, default=now * 1000 + 3000) / 1000 - now)
            await asyncio.sleep(0.1)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=60.0, limits=limits) as client:
        watching = asyncio.create_task(watch())
        answers = await asyncio.gather(*(turn(client, number) for number in range(200)))
        watching.cancel()
    assert sum(answers) == 200
    assert min(least) > 1.0
    assert len(street.notes("begin")) == 200
