"""`greenroom demo`: it runs, on processes and on fakeredis, and its checks go red for every kind of bad history."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from rich.console import Console
from support import no_server, wait_until

from coordinator import Limits, cli, scripts
from coordinator.private_redis import PrivateRedis, find_server
from coordinator.room import Event
from workers import Worker
from workers.rehearsal import crew
from workers.rehearsal.crew import HistoryFile, Member, Plan
from workers.rehearsal.verdict import (
    Created,
    History,
    Left,
    Record,
    Released,
    Rested,
    Trouble,
    TurnRecord,
    check,
    dump,
    load,
    summary,
)
from workers.rehearsal.view import Frame, Shelf, line, render, render_summary

COMMAND = [sys.executable, "-m", "coordinator", "demo", "--json"]


@pytest.fixture(autouse=True)
def _no_redis_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GREENROOM_REDIS_URL", raising=False)


# -- the checks


def turn(fence: int, entered: float, leaving: float, **other: Any) -> TurnRecord:
    given: dict[str, Any] = {"worker": "w1", "session": "s", "agent": "a", "fresh": False, "accepted": True}
    given |= {"asked": entered - 0.1, "left": leaving + 0.1} | other
    return TurnRecord(fence=fence, entered=entered, leaving=leaving, **given)


BUILT = turn(10, 1.0, 2.0, fresh=True, building=0.05)
HIT = turn(11, 3.0, 4.0)
CREATED, RELEASED = Created("a", "s", 0.99), Released("a", "soft", False, 5.0)
END: list[Record] = [Rested("w1", 0, 0), Left("w1")]
GOOD: list[Record] = [CREATED, BUILT, HIT, RELEASED, *END]


def red(records: list[Record], **other: Any) -> set[str]:
    """Names of the checks that a history does not pass."""
    given: dict[str, Any] = {"counters": {"hits": 1, "builds": 1}} | other
    return {one.name for one in check(History(["w1"], 6.0, records, **given)) if not one.ok}


def test_a_good_history_passes() -> None:
    assert red(GOOD) == set()


@pytest.mark.parametrize(
    ("names", "records"),
    [
        pytest.param({"doubled"}, [CREATED, BUILT, turn(11, 1.5, 4.0), RELEASED, *END], id="doubled"),
        pytest.param({"doubled"}, [CREATED, turn(10, 1.0, 4.5, fresh=True), HIT, RELEASED, *END], id="doubled-inside"),
        pytest.param(
            {"doubled"}, [CREATED, BUILT, replace(HIT, worker="w2", entered=2.5, building=1.0), RELEASED, *END],
            id="doubled-by-a-build",
        ),
        pytest.param(
            {"doubled"}, [CREATED, replace(BUILT, leaving=3.5, accepted=False), HIT, RELEASED, *END],
            id="doubled-and-refused-though-its-lease-had-not-run-out",
        ),
        pytest.param(
            {"doubled"}, [*GOOD, replace(HIT, agent="", fence=12, accepted=False, entered=3.5, building=0.5)],
            id="doubled-by-a-build-that-was-refused",
        ),
        pytest.param({"fences"}, [CREATED, BUILT, replace(HIT, fence=9), RELEASED, *END], id="fence-falls"),
        pytest.param({"fences"}, [CREATED, BUILT, replace(HIT, fence=10), RELEASED, *END], id="fence-stays"),
        pytest.param(
            {"fences"}, [CREATED, BUILT, replace(HIT, session="t", fence=10), RELEASED, *END], id="fence-given-twice"
        ),
        pytest.param({"mid-turn"}, [CREATED, BUILT, HIT, replace(RELEASED, in_use=True), *END], id="in-use"),
        pytest.param({"mid-turn"}, [CREATED, BUILT, HIT, replace(RELEASED, at=3.5), *END], id="released-mid-turn"),
        pytest.param({"mid-turn"}, [CREATED, BUILT, HIT, replace(RELEASED, at=2.5), *END], id="used-after-release"),
        pytest.param({"twice"}, [*GOOD, replace(RELEASED, mode="hard", at=6.0)], id="released-twice"),
        pytest.param({"leaked"}, [CREATED, BUILT, HIT, *END], id="leaked"),
        pytest.param({"leaked"}, [*GOOD[:-2], Rested("w1", 1, 2), Left("w1")], id="leaked-while-resident"),
        pytest.param({"leaked"}, GOOD[1:], id="released-and-never-created"),
        pytest.param({"counted"}, [CREATED, BUILT, RELEASED, *END], id="a-turn-nobody-saw"),
        pytest.param({"counted"}, END, id="nothing-happened"),
        pytest.param({"left"}, GOOD[:-1], id="a-worker-that-did-not-leave"),
        pytest.param({"left"}, [*GOOD, Trouble("w1", "it crashed")], id="trouble"),
    ],
)  # fmt: skip
def test_a_bad_history_goes_red(names: set[str], records: list[Record]) -> None:
    assert red(records) == names


def test_a_room_that_is_not_empty_goes_red() -> None:
    assert red(GOOD, left_behind=["telegram:1"]) == {"left"}


def test_a_turn_whose_lease_had_run_out_may_overlap_the_next() -> None:
    stale = turn(10, 1.0, 20.0, fresh=True, accepted=False)
    assert red([CREATED, stale, turn(11, 8.0, 9.0, agent="b"), replace(RELEASED, at=21.0), *END]) == set()


def test_waiting_in_line_is_told_from_a_quick_begin() -> None:
    numbers = summary(History(["w1"], 6.0, [*GOOD, turn(12, 4.5, 5.0, asked=3.5)], {"evictions:lru": 3, "moves": 2}))
    assert (numbers["turns"], numbers["hits"], numbers["waits"], numbers["moves"]) == (3, 2, 1, 2)
    assert numbers["evictions"] == {"lru": 3}
    assert numbers["latency_ms"]["begin_hit"] == {"count": 1, "p50": 100.0, "p99": 100.0}
    assert numbers["latency_ms"]["begin_waited"] == {"count": 1, "p50": 1000.0, "p99": 1000.0}
    assert numbers["latency_ms"]["begin_build"]["p50"] == 100.0
    assert numbers["latency_ms"]["begin_build_overhead"]["p50"] == 50.0


def test_a_history_survives_its_file_and_a_torn_line_is_trouble() -> None:
    lines = [dump(record) for record in GOOD]
    assert load(lines, "w1") == GOOD
    assert load([*lines[:2], lines[2][:-9]], "w1")[2:] == [Trouble("w1", "a line of its history was cut off")]


# -- the view


def frame(**other: Any) -> Frame:
    counters = {"hits": 300, "builds": 100, "evictions:lru": 7, "moves": 5, "over_cap": 1}
    events = [
        Event("1-0", 1.0, "built", {"session": "s[red]\x1b[31m", "worker": "w1"}),
        Event("2-0", 2.0, "moved", {"session": "s", "worker": "w1", "reason": "moved", "mode": "soft"}),
        Event("3-0", 3.0, "evicted", {"session": "s", "worker": "w1", "reason": "reset", "mode": "hard"}),
        Event("4-0", 4.0, "over-cap", {"index": "lru", "over": "1"}),
    ] * 4
    workers = [Shelf("w1", "up", 12, 3), Shelf("w2", "draining", 16, 0)]
    given: dict[str, Any] = {"workers": workers, "held": 28, "rate": 40.0, "counters": counters, "events": events}
    given |= {"title": "Greenroom demo", "elapsed": 10.0, "seconds": 20.0, "cap": 16, "room_cap": 45}
    return Frame(**(given | other))


@pytest.mark.parametrize(("width", "height"), [(100, 30), (80, 24), (40, 12)])
def test_the_view_fits_the_terminal_and_never_changes_its_height(width: int, height: int) -> None:
    heights = set()
    for moment in (frame(), frame(events=[], counters={}), frame(elapsed=25.0)):
        console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
        console.print(render(moment, width, height))
        lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
        assert all(len(text.rstrip()) <= width for text in lines)
        assert "\x1b" not in "".join(lines)
        heights.add(len(lines))
    assert len(heights) == 1
    if width >= 80:
        assert heights.pop() < height
        assert any("●●●○○○○○○○○○····" in text for text in lines)


def test_many_agents_share_a_dot() -> None:
    console = Console(file=io.StringIO(), width=100)
    console.print(render(replace(frame(), cap=1000, workers=[Shelf("w1", "up", 500, 1)]), 100, 30))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("●") == 2  # one of them in the legend
    assert "500/1000" in text


def test_a_line_and_a_red_summary() -> None:
    assert "400 turns" in line(frame())
    history = History(["w1"], 6.0, [CREATED, replace(BUILT, accepted=False)])
    console = Console(file=io.StringIO(), width=80)
    console.print(render_summary("title", summary(history), 20.0, check(history)))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "✗  created − released = resident; after leaving none" in text
    assert "s: agent a was never released" in text
    assert "1 turns lost their lease" in text


# -- the whole


def run_demo(*words: str, **environ: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=60, env=os.environ | environ, check=False
    )
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.fixture
def _needs_server() -> None:
    if not find_server():
        no_server()


@pytest.mark.usefixtures("_needs_server")
def test_it_runs_on_real_processes_and_every_check_passes() -> None:
    code, told, err = run_demo("--seconds", "3", "--seed", "7")
    assert err == ""
    assert [one for one in told["checks"] if not one["ok"]] == []
    assert (code, told["ok"], told["kind"], told["workers"], told["sessions"]) == (0, True, "processes", 3, 60)
    assert told["turns"] == told["hits"] + told["builds"] > 50
    assert told["agents"]["created"] == told["agents"]["released"] == told["builds"]
    assert told["moves"] > 0
    assert told["waits"] > 0
    assert {"moved", "drain", "fallback"} <= told["evictions"].keys()
    assert told["latency_ms"]["begin_hit"]["count"] > 0


def test_without_a_server_it_runs_on_fakeredis_and_says_so() -> None:
    code, told, err = run_demo("--seconds", "1", GREENROOM_REDIS_SERVER="/nonexistent")
    assert (code, told["ok"], told["kind"], err) == (0, True, "threads", "")
    assert told["redis"] == "fakeredis (no redis-server was found)"
    assert told["turns"] > 10


def test_a_room_whose_leases_do_not_exclude_goes_red(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The negative control of the whole: break the rule in Lua, and the demo sees it."""

    def change(path: str, body: str) -> str:
        rule = "if left > 0 then return session, record, left end"
        assert path != "lib/lease_on" or rule in body
        return body.replace(rule, "") if path == "lib/lease_on" else body

    broken = {name: scripts.load(name, change) for name in scripts.NAMES}
    monkeypatch.setenv("GREENROOM_REDIS_SERVER", "/nonexistent")
    monkeypatch.setattr(crew, "Worker", partial(Worker, scripts=broken))
    assert cli.main(["demo", "--json", "--seconds", "1", "--sessions", "4"]) == 1
    out, err = capsys.readouterr()
    assert out, err
    assert "doubled" in {one["name"] for one in json.loads(out)["checks"] if not one["ok"]}


@pytest.mark.parametrize("inherited", [signal.SIG_DFL, signal.SIG_IGN], ids=["foreground", "background"])
def test_ctrl_c_ends_it_cleanly_and_a_named_redis_is_left_clean(server: PrivateRedis, inherited: Any) -> None:
    """Whatever the test itself was started with: in the background of a shell, SIGINT is ignored and inherited."""
    with redis.Redis.from_url(server.url) as client:
        before = set(client.scan_iter("greenroom:{demo-*"))
        command = [*COMMAND, "--workers", "2", "--redis", server.url]
        with subprocess.Popen(
            command, stdout=-1, stderr=-1, text=True, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, inherited),
        ) as running:  # fmt: skip
            wait_until(lambda: any(b":session:" in key for key in client.scan_iter("greenroom:{demo-*")), 20)
            os.killpg(running.pid, signal.SIGINT)  # as a terminal does: the workers get it too
            out, err = running.communicate(timeout=30)
        told = json.loads(out)
        assert (running.returncode, told["ok"], told["interrupted"], err) == (0, True, True, "")
        assert told["seconds"] < 15
        assert set(client.scan_iter("greenroom:{demo-*")) == before


@pytest.mark.usefixtures("_needs_server")
def test_ctrl_c_while_the_processes_start_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[Member] = []
    start = Member.start

    def start_and_press(member: Member) -> None:
        start(member)
        started.append(member)
        if len(started) == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Member, "start", start_and_press)
    assert cli.main(["demo", "--json", "--workers", "2"]) == 130
    assert capsys.readouterr() == ("", "")
    assert len(started) == 2
    assert not any(member.alive() for member in started)


def test_a_redis_that_is_away_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GREENROOM_RETRY_FOR", "0.1")
    assert cli.main(["demo", "--redis", "redis://:hunter2@127.0.0.1:1"]) == 1
    assert capsys.readouterr() == ("", "greenroom: Redis cannot be reached at 127.0.0.1:1 (ConnectionError)\n")
    assert cli.main(["demo", "--redis", "ftp://:hunter2@there"]) == 2
    assert "hunter2" not in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--seconds", "0"), ("--workers", "many"), ("--sessions", "-1")])
def test_bad_usage(words: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["demo", *words])


# -- a worker that does not do as it should


@pytest.fixture
def member(server: PrivateRedis, room: str, tmp_path: Path) -> Iterator[Member]:
    plan = Plan(server.url, room, ("w1",), 0, ("s",), Limits(), 6.0, 1, tmp_path / "w1.jsonl")
    one = Member(plan, threads=False)
    yield one
    one.kill()


def test_a_worker_that_crashes_or_hangs_is_noticed_and_ended(member: Member) -> None:
    member.start()
    assert member.joined(deadline=time.monotonic() + 20)
    assert member.end(deadline=0.0) == "did not end by itself"
    assert not member.alive()
    assert member.end(deadline=0.0) == "ended with exit code -9"


def test_a_worker_that_cannot_join_says_why(server: PrivateRedis, tmp_path: Path) -> None:
    plan = Plan(server.url, "no/room", ("w1",), 0, ("s",), Limits(), 6.0, 1, tmp_path / "w1.jsonl")
    one = Member(plan, threads=True)
    assert one.end(deadline=0.0) == "was not started"
    one.start()
    assert one.end(deadline=time.monotonic() + 10) == ""
    (trouble,) = load(plan.history.read_text().splitlines(), "w1")
    assert isinstance(trouble, Trouble)
    assert trouble.what.startswith("InvalidName")


def test_what_a_worker_logs_as_an_error_is_trouble(tmp_path: Path) -> None:
    plan = Plan("", "room", ("w1",), 0, ("s",), Limits(), 6.0, 1, tmp_path / "w1.jsonl")
    with HistoryFile(plan):
        logging.getLogger("greenroom.releases").error("gave up on %s", "it")
        logging.getLogger("greenroom.releases").warning("no trouble")
    assert load(plan.history.read_text().splitlines(), "w1") == [Trouble("w1", "logged: gave up on it")]
