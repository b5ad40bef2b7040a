"""What one replica does: turns, streams, problems, and its end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from support import wait_until
from support.choir import VOICES
from support.replicas import Replica, Street, at_once, is_problem

from coordinator.private_redis import PrivateRedis
from workers.gateway.addresses import listen
from workers.gateway.command import ECHO


def test_answers_in_every_form_an_agent_may_have(street: Street) -> None:
    [one] = street.open()
    for voice in VOICES:
        config = {"model": voice, "voice": voice}
        first = one.turn(voice, "/drip 3", config=config)
        assert first.status_code == 200, first.text
        answer = first.json()
        assert answer["reply"] == "0 1 2 "
        assert (answer["session"], answer["worker"], answer["fresh"]) == (voice, one.worker, True)
        assert answer["forwarded"] is False
        again = one.turn(voice, "héllo\n", config=config).json()
        assert (again["reply"], again["fresh"]) == ("héllo\n", False)
        assert again["fence"] > answer["fence"]
        with one.stream(voice, "/drip 3", config=config) as got:
            events = list(got)
        whole = voice in ("text", "later")
        assert [value["piece"] for name, value in events[:-1]] == (["0 1 2 "] if whole else ["0 ", "1 ", "2 "])
        name, last = events[-1]
        assert name == "end"
        assert last["reply"] == "0 1 2 "
        assert set(last) == {"reply", "session", "worker", "fence", "fresh", "forwarded"}
    threads = {note["session"]: note["thread"] for note in street.notes("begin")}
    assert threads["pieces"].startswith("greenroom-run")
    assert threads["text"].startswith("greenroom-run")
    assert threads["flow"] == "MainThread"


def test_a_piece_is_sent_when_it_is_there(street: Street) -> None:
    [one] = street.open()
    began = time.monotonic()
    with one.stream("s", "/drip 20") as got:
        next(got)
        first = time.monotonic() - began
        list(got)
    assert first < (time.monotonic() - began) / 2


def test_small_answers_are_not_held_back() -> None:
    """Asyncio sets TCP_NODELAY only on sockets that are seen to be TCP; without, an answer takes 40 ms."""
    with listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_names_may_hold_anything(street: Street) -> None:
    [one] = street.open()
    for session in ("a/b", "a%2Fb", "turns", "x/turns", "ü ☂ 👪", "a?b#c", "a..b", "%00", "{room}:*", "x" * 512):
        answer = one.turn(session, "/prompt").json()
        assert answer["session"] == session
        assert answer["reply"].startswith(f"prompt of {session}, ")
        assert one.reset(session).json() == {"session": session, "evicted": True}


def test_bad_input_is_a_clear_4xx_and_runs_nothing(street: Street) -> None:
    [one] = street.open(1, body_limit=10_000)
    path, client = one.path("s"), one.client
    head = {"Content-Type": "application/json"}

    def send(body: bytes) -> httpx.Response:
        return client.post(path, content=body, headers=head)

    bad = [
        b"", b"{", b"[]", b'"text"', b"null", b"{}", b'{"message": 7}', b'{"message": null}', b'{"message": ["x"]}',
        b'{"message": "x", "colour": 1}', b'{"message": "x", "config": "m"}', b'{"message": "x", "config": [1]}',
        b'{"message": "x", "config": {"a": 1}}', b'{"message": "x", "config": {"model": "m", "runtime": 3}}',
        b'{"message": "x", "config": {"model": "m", "toolsets": "web"}}',
        b'{"message": "x", "config": {"model": {}}}', b'{"message": "x", "config": {"ephemeral_prompt": []}}',
        b'{"message": "x", "on_busy": "push"}',
        b'{"message": "x", "on_busy": null}', b'{"message": "x", "on_busy": []}', b'{"message": "\\ud800"}',
        b'{"message": "\xff"}', b'{"message": NaN}', b"[" * 9000,
        b'{"message": "x", "config": {"model": ' + b"9" * 5000 + b"}}",
        b'{"message": "x", "config": {"model": "m", "extra": {"a": "\\udfff"}}}',
        b'{"message": "x", "config": {"model": "m", "mine": NaN}}',
    ]  # fmt: skip
    for body in bad:
        is_problem(send(body), 400, "invalid-request")
    is_problem(send(b'{"message": "' + b"x" * 10_000 + b'"}'), 413, "too-large")
    drop = iter([b'{"message": "', *[b"x" * 1000] * 11, b'"}'])
    is_problem(client.post(path, content=drop, headers=head), 413, "too-large")
    is_problem(client.post(path, content=b'{"message": "x"}'), 415, "unsupported-media-type")
    is_problem(client.post(path, data={"message": "x"}), 415, "unsupported-media-type")
    for name in ("", "%00", "a%0Ab", "%FF", "%C2%85", "x" * 513, "%ED%A0%80"):
        there = f"{one.url}/v1/sessions/{name}/turns"
        is_problem(client.post(there, json={"message": "x"}), 400, "invalid-request")
        is_problem(client.delete(there.removesuffix("/turns")), 400, "invalid-request")
    for name in (
        "/",
        "/v1",
        "/v1/sessions",
        "/v1/sessions/a/b",
        "/v1/sessions/a/turns/b",
        "/v2/sessions/a/turns",
        "/favicon.ico",
    ):
        is_problem(client.post(one.url + name, json={"message": "x"}), 404, "not-found")
    for method, name in (("GET", "a/turns"), ("DELETE", "a/turns"), ("POST", "a"), ("PUT", "a"), ("PATCH", "a/turns")):
        refused = client.request(method, f"{one.url}/v1/sessions/{name}")
        is_problem(refused, 405, "method-not-allowed")
        assert refused.headers["allow"] in ("POST", "DELETE")
    is_problem(client.post(one.url + "/healthz"), 405, "method-not-allowed")
    assert street.notes("build") == street.notes("begin") == []
    assert street.redis.zcard(street.key("lru")) == 0


def test_the_document_describes_every_answer(street: Street) -> None:
    """Schemathesis finds no 5xx, and no answer that /openapi.json does not describe."""
    [one] = street.open(agent=ECHO)
    tool = [str(Path(sys.executable).with_name("schemathesis")), "run", f"{one.url}/openapi.json"]
    options = ["--checks", "all", "--max-examples", "40", "--seed", "7", "--no-color"]
    run = subprocess.run([*tool, *options], capture_output=True, text=True, cwd=street.folder, timeout=110)
    assert run.returncode == 0, run.stdout
    assert "6/6" in run.stdout  # all but the document itself


def test_the_echo_agent(street: Street) -> None:
    [one] = street.open(agent=ECHO)
    assert one.turn("s", "say it  again").json()["reply"] == "say it  again"
    assert one.turn("s", "/count").json()["reply"] == "2"
    assert one.turn("s", "/slow 0.2").json()["reply"] == "..done"
    slow, after = at_once(lambda: one.turn("s", "/slow 30"), lambda: one.turn("s", "/prompt", on_busy="interrupt"))
    assert slow.json()["reply"].endswith("stopped")
    assert "You say back" in after.json()["reply"]


def test_a_body_that_does_not_come_is_not_waited_for(street: Street) -> None:
    [one] = street.open(1, body_for=0.3)
    at = urlsplit(one.url)
    with socket.create_connection((at.hostname, at.port), timeout=10) as slow:
        slow.sendall(b"POST /v1/sessions/s/turns HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
        slow.sendall(b"Content-Length: 50\r\n\r\n{")
        assert b"408" in slow.recv(4096).split(b"\r\n")[0]


def test_without_redis_nothing_runs_and_it_is_said(room: str, tmp_path: Path) -> None:
    """Until Redis is back: then it serves on, with the agent it kept."""
    with PrivateRedis() as server, closing(Street(server.url, room, tmp_path)) as street:
        [one] = street.open()
        prompt = one.turn("s", "/prompt").json()["reply"]
        server.kill()
        answer, reset, refused = at_once(lambda: one.turn("s"), lambda: one.reset("s"), lambda: one.get("/readyz"))
        body = is_problem(answer, 503, "unavailable")
        assert answer.headers["retry-after"] == str(body["retry_after"]) == "1"
        is_problem(reset, 503, "unavailable")
        assert (refused.status_code, refused.json()["ready"]) == (503, False)
        assert "Redis" in refused.json()["why"]
        assert one.get("/healthz").status_code == 200, "to end it would help nobody"
        server.start()
        wait_until(lambda: one.get("/readyz").status_code == 200)
        wait_until(lambda: one.turn("s").status_code == 200)
        assert one.turn("s", "/prompt").json()["reply"] == prompt
        assert len(street.notes("build")) == 1
        assert street.begun().count("hello") == 1


def test_on_busy(street: Street) -> None:
    [one] = street.open()
    slow, rejected, waited = at_once(
        lambda: one.turn("s", "/sleep 1"),
        lambda: one.turn("s", "x", on_busy="reject"),
        lambda: one.turn("s", "second", on_busy="wait"),
    )
    assert slow.json()["reply"] == "slept"
    busy = is_problem(rejected, 409, "busy")
    assert (busy["holder"], busy["why"], busy["ahead"]) == (one.worker, "turn", 0)
    assert 0.1 < busy["running"] < 1.0
    assert rejected.headers["retry-after"] == "1"
    assert waited.json()["fence"] > slow.json()["fence"]
    for voice in ("flow", "pieces", "text"):
        config, began = {"model": voice, "voice": voice}, time.monotonic()
        stopped, after = at_once(
            lambda config=config: one.turn("s", "/sleep 20", config=config),
            lambda config=config: one.turn("s", "now me", config=config, on_busy="interrupt"),
        )
        assert (stopped.json()["reply"], after.json()["reply"]) == ("stopped", "now me")
        assert time.monotonic() - began < 10


def test_a_body_that_is_lost_with_an_upgrade_is_told(street: Street) -> None:
    """A client that would like to speak HTTP/2 leaves its body where no HTTP/1.1 server looks for it."""
    [one] = street.open()
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAARAAAAAAAIAAAAA"}
    assert "Upgrade header" in is_problem(one.turn("s", headers=headers), 400, "invalid-request")["detail"]
    assert street.notes("begin") == []


@pytest.mark.parametrize("policy", ["finish", "interrupt"])
@pytest.mark.parametrize("streamed", [True, False])
def test_a_client_that_hangs_up(street: Street, policy: str, streamed: bool) -> None:
    [one] = street.open(1, "--on-disconnect", policy)
    with pytest.raises(httpx.ReadTimeout):
        headers = {"Accept": "text/event-stream"} if streamed else {}
        httpx.post(one.path("s"), json={"message": "/sleep 2"}, headers=headers, timeout=0.7)
    if policy == "finish":
        assert one.turn("s", "x", on_busy="reject").status_code == 409
    wait_until(lambda: street.redis.zcard(street.key("leases")) == 0, 1.0 if policy == "interrupt" else 10.0)
    begin, end = street.notes("begin")[0]["at"], street.notes("end")[0]["at"]
    assert (end - begin > 1.9) is (policy == "finish")
    assert one.turn("s", "next").json()["fresh"] is False


def test_a_client_that_hangs_up_while_it_waits_in_line(street: Street) -> None:
    [one] = street.open(1, "--on-disconnect", "interrupt")

    def impatient() -> None:
        httpx.post(one.path("s"), json={"message": "never said"}, timeout=0.3)

    slow, gone = at_once(lambda: one.turn("s", "/sleep 1"), impatient)
    assert slow.status_code == 200
    assert isinstance(gone, httpx.ReadTimeout)
    assert one.turn("s", "x").status_code == 200
    assert street.begun() == ["/sleep 1", "x"]


def test_its_state_is_shown(street: Street) -> None:
    [one] = street.open()
    assert one.get("/healthz").json() == {"status": "ok"}
    assert one.get("/readyz").json() == {"ready": True, "worker": one.worker, "why": ""}
    one.turn("s")
    one.turn("s", "/fail")
    text = one.get("/metrics").text
    assert 'greenroom_messages_total{outcome="answered"} 1' in text
    assert 'greenroom_messages_total{outcome="agent-failed"} 1' in text
    assert "greenroom_resident_agents 1" in text
    page = one.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "agent-failed" in page.text
    assert one.get("/openapi.json").json()["openapi"].startswith("3.")


def test_what_cannot_be_served_is_said_in_one_line(street: Street) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for options, said in (
            (["--port", port], f"cannot listen on 127.0.0.1:{port}"),
            (["--agent", "no.such:thing"], "there is no module"),
            (["--agent", "support.choir:nothing"], "has no 'nothing'"),
            (["--agent", "support.choir:VOICES"], "cannot be called"),
            (["--agent", "support"], "module:build"),
            (["--redis", "redis://127.0.0.1:1"], "Redis cannot be reached at 127.0.0.1:1"),
            (["--redis", "nonsense"], "Redis URL"),
            (["--worker", "a b"], "a worker id is"),
            (["--advertise", "me:8000"], "http://host:port"),
            (["--advertise", "http://me:secret@here:8000"], "http://host:port"),
        ):
            log = street.folder / "failed.log"
            log.unlink(missing_ok=True)
            failed = Replica(street.source, street.room, log, *options, retry_for=0.2)
            street.replicas.append(failed)
            assert failed.ended() in (1, 2)
            assert said in failed.log(), failed.log()
            assert "Traceback" not in failed.log()


def test_a_module_that_cannot_be_imported_is_shown(street: Street) -> None:
    """With the place, which its author looks for."""
    (street.folder / "bad_syntax.py").write_text("def build(request:\n")
    (street.folder / "bad_import.py").write_text("raise RuntimeError('no key in the environment')\n")
    for module, said in (("bad_syntax", "bad_syntax.py"), ("bad_import", "no key in the environment")):
        command = [sys.executable, "-m", "coordinator", "serve", "--agent", f"{module}:build"]
        run = subprocess.run(command, capture_output=True, text=True, cwd=street.folder, timeout=60)
        assert run.returncode == 2
        assert said in run.stderr
        assert f"greenroom: --agent {module}:build: {module} cannot be imported" in run.stderr.splitlines()[-1]
    wrong = {**os.environ, "GREENROOM_LOG_LEVEL": "loud"}
    command = [sys.executable, "-m", "coordinator", "serve", "--agent", ECHO]
    run = subprocess.run(command, capture_output=True, text=True, env=wrong, timeout=60)
    assert (run.returncode, "GREENROOM_LOG_LEVEL is DEBUG, INFO" in run.stderr) == (2, True), run.stderr
