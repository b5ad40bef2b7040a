"""The command `greenroom`: each command against a live room, and what it says when something is wrong."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest
import redis
from support import wait_until

from coordinator import Coordinator, Limits, cli
from coordinator.cli import output, program
from coordinator.private_redis import PrivateRedis
from workers import Worker

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(server: PrivateRedis, room: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `greenroom` in a room of its own; exit code, stdout, stderr."""
    monkeypatch.setenv("GREENROOM_REDIS_URL", server.url)
    monkeypatch.setenv("GREENROOM_ROOM", room)

    def call(*words: str) -> tuple[int, str, str]:
        try:
            code = cli.main(words)
        except SystemExit as exit:  # argparse
            code = int(exit.code or 0)
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def worker(server: PrivateRedis, room: str) -> Iterator[Worker]:
    """A worker that holds `telegram:1` and `telegram:2`, the first one used twice."""
    with Worker(lambda request: object(), redis=server.url, room=room, worker="w1") as running:
        for session in ("telegram:1", "telegram:1", "telegram:2"):
            with running.turn(session, "sig"):
                pass
        yield running


def as_json(answer: tuple[int, str, str]) -> Any:
    code, out, err = answer
    assert (code, err) == (0, "")
    return json.loads(out)


def test_status_shows_the_room_at_a_glance(run: Run, room: str, worker: Worker) -> None:
    with worker.turn("telegram:2", "sig"):
        state = as_json(run("status", "--json"))
    assert state["room"] == room
    assert state["workers"] == {"up": 1, "draining": 0, "dead": 0}
    assert state["sessions"] == {"live": 2, "building": 0, "mid_turn": 1}
    assert (state["counters"]["hits"], state["counters"]["builds"], state["hit_rate"]) == (2, 2, 0.5)
    assert state["limits"] is None
    code, out, _ = run("status")
    assert code == 0
    assert "hit_rate  50%" in out


def test_status_of_a_room_that_never_was(run: Run) -> None:
    state = as_json(run("status", "--json", "--room", "nobody-was-here"))
    assert (state["hit_rate"], state["counters"]) == (None, {})
    assert run("status", "--room", "nobody-was-here")[0] == 0


def test_sessions_lists_the_next_victim_first(run: Run, worker: Worker) -> None:
    found = as_json(run("sessions", "--json"))
    assert [one["session"] for one in found] == ["telegram:1", "telegram:2"]
    assert {"worker": "w1", "signature": "sig", "state": "live", "turn": ""}.items() <= found[0].items()
    assert len(as_json(run("sessions", "--json", "--limit", "1"))) == 1
    code, out, _ = run("sessions")
    assert code == 0
    assert out.index("telegram:1") < out.index("telegram:2")


def test_workers_are_listed(run: Run, worker: Worker) -> None:
    (found,) = as_json(run("workers", "--json"))
    assert {"worker": "w1", "state": "up", "held": 2}.items() <= found.items()
    assert "w1" in run("workers")[1]


def test_events_show_the_newest_and_go_on_from_an_entry(run: Run, worker: Worker) -> None:
    found = as_json(run("events", "--json"))
    assert [one["event"] for one in found] == ["up", "built", "built"]
    assert found[1]["fields"]["session"] == "telegram:1"
    assert as_json(run("events", "--json", "--limit", "1")) == found[-1:]
    assert as_json(run("events", "--json", "--since", found[0]["id"])) == found[1:]
    assert as_json(run("events", "--json", "--since", found[-1]["id"])) == []
    assert "telegram:2" in run("events")[1]


def test_evict_lets_an_agent_go(run: Run, worker: Worker) -> None:
    assert as_json(run("evict", "telegram:1", "--json")) == {"session": "telegram:1", "mode": "soft", "found": True}
    wait_until(lambda: worker.resident == ["telegram:2"])
    code, out, _ = run("evict", "--hard", "telegram:2")
    assert (code, out.strip()) == (0, "evicted telegram:2 (hard); if a turn runs, at its end")
    wait_until(lambda: worker.resident == [])


def test_evict_of_an_unknown_session_fails_but_a_hard_one_is_noted(run: Run, worker: Worker) -> None:
    assert run("evict", "nobody") == (1, "", "greenroom: nobody holds an agent for nobody\n")
    code, out, err = run("evict", "nobody", "--hard")
    assert (code, err) == (0, "")
    assert "a worker ends the session" in out


def test_sweep_goes_by_the_rooms_idle_ttl(run: Run, server: PrivateRedis, room: str) -> None:
    class Stamped:
        _last_activity_ts = 1.0

    with Worker(lambda request: Stamped(), redis=server.url, room=room) as worker:
        with worker.turn("telegram:1"):
            pass
        assert as_json(run("sweep", "--json")) == {"idle": 0, "idle_ttl": None}
        assert "no idle_ttl" in run("sweep")[1]
        with Coordinator(server.url, room) as coordinator:
            coordinator.set_limits(Limits(idle_ttl=0.001))
            wait_until(lambda: (coordinator.sessions()[0].idle or 0) > 0.002)
        assert as_json(run("sweep", "--json")) == {"idle": 1, "idle_ttl": 0.001}
        assert "evicted 0" in run("sweep")[1]


def test_drain_tells_a_worker(run: Run, worker: Worker) -> None:
    assert as_json(run("drain", "w1", "--json")) == {"worker": "w1", "state": "draining"}
    assert run("drain", "w1")[:2] == (0, "w1 drains\n")
    assert as_json(run("status", "--json"))["workers"]["draining"] == 1
    assert run("drain", "w2") == (1, "", "greenroom: the room has no worker w2\n")


def test_limits_are_shown_set_and_cleared(run: Run) -> None:
    assert as_json(run("limits", "--json")) is None
    assert "each worker's own" in run("limits")[1]
    expected = {"room": 9, "worker": None, "idle_ttl": 60.0, "memory": 1 << 30}
    assert as_json(run("limits", "room=9", "idle_ttl=60", "memory=1GiB", "worker=none", "--json")) == expected
    assert as_json(run("status", "--json"))["limits"] == expected
    shown = run("limits")[1]
    assert "worker    none" in shown
    assert "idle_ttl  60.0 s" in shown
    assert "memory    1GiB" in shown
    assert "next turn" not in shown
    assert "next turn or beat" in run("limits", "room=9")[1]
    assert as_json(run("limits", "--clear", "--json")) is None


def test_hostile_session_names_are_only_text(run: Run, server: PrivateRedis, room: str) -> None:
    """A name cannot hold ESC; markup, emoji codes, bidi overrides and separators it can."""
    hostile = ("evil\u202e[red]x[/red][link=http://a]", "[bold]x", "\\[/]", ":smile:", "name\u2028next", "ᐅ日本")
    with Worker(lambda request: object(), redis=server.url, room=room) as worker:
        for session in hostile:
            with worker.turn(session):
                pass
        assert [one["session"] for one in as_json(run("sessions", "--json"))] == list(hostile)
        for words in (("sessions",), ("events",)):
            code, out, _ = run(*words)
            assert code == 0
            assert all(output.shown(session) in out for session in hostile)
            assert all(char.isprintable() for line in out.split("\n") for char in line)
        for session in hostile:
            assert run("evict", session)[1].startswith(f"evicted {output.shown(session)} (soft)")
            assert run("evict", session)[2] == f"greenroom: nobody holds an agent for {output.shown(session)}\n"


def test_what_another_writer_put_into_redis_is_escaped(run: Run, server: PrivateRedis, room: str) -> None:
    """Names are checked on their way in, but Redis is open to others: an ESC must not reach the terminal."""
    prefix = f"greenroom:{{{room}}}:"
    with redis.Redis.from_url(server.url) as client:
        client.xadd(prefix + "journal", {"event": "built", "session": "\x1b[31mred\x07", "[bold]": "\x1b]0;t\x07"})
        code, out, _ = run("events")
        assert code == 0
        assert "\x1b" not in out
        assert "\\x1b[31mred\\x07" in out
        client.xadd(prefix + "journal", {"event": b"\xff\xfe"})
        client.hset(prefix + "settings", "room", "many")
        for command, kind in (("events", "UnicodeDecodeError"), ("limits", "ValueError")):
            hint = "does something else write to the room's keys?"
            assert run(command) == (1, "", f"greenroom: unexpected {kind}: {hint}\n")


def test_an_unknown_option_in_the_url_is_no_traceback(run: Run, server: PrivateRedis) -> None:
    code, out, err = run("status", "--redis", server.url + "?no_such_option=1")
    assert (code in (1, 2), out, err.count("\n")) == (True, "", 1)


def test_a_redis_that_is_away_is_one_line(run: Run) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{closed.getsockname()[1]}"
        said = f"greenroom: Redis cannot be reached at {at} (ConnectionError)\n"
        assert run("status", "--redis", f"redis://user:hunter2@{at}") == (1, "", said)


def test_a_wrong_password_is_one_line(run: Run, server: PrivateRedis) -> None:
    code, out, err = run("workers", "--redis", server.url.replace("//", "//nobody:hunter2@"))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "check the password" in err
    assert "hunter2" not in err


def test_the_password_is_not_shown(run: Run, server: PrivateRedis) -> None:
    with redis.Redis.from_url(server.url) as client:
        client.execute_command("ACL", "SETUSER", "ada", "on", ">hunter2", "~*", "+@all")
    state = as_json(run("status", "--json", "--redis", server.url.replace("//", "//ada:hunter2@")))
    assert state["redis"] == server.url


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("no-such-command",),
        ("evict",),
        ("evict", "bad\x1bname"),
        ("drain", "no such worker!"),
        ("status", "--room", "no/room"),
        ("status", "--redis", "ftp://there"),
        ("status", "--redis", "redis://:hun/ter2@there"),
        ("events", "--since", "yesterday"),
        ("sessions", "--limit", "0"),
        ("limits", "room=many"),
        ("limits", "room=-1"),
        ("limits", "memory=lots"),
        ("limits", "cellar=5"),
        ("limits", "room=1", "--clear"),
    ],
)
def test_bad_usage_is_exit_code_2_and_changes_nothing(run: Run, words: tuple[str, ...]) -> None:
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert "hun" not in err
    assert "\x1b" not in err
    assert as_json(run("limits", "--json")) is None


def test_a_bad_setting_in_the_environment_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GREENROOM_LEASE", "long")
    assert run("status") == (2, "", "greenroom: GREENROOM_LEASE must be a number, not 'long'\n")


def test_a_command_that_cannot_be_loaded_does_not_take_the_others_down(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = EntryPoint("broken", "no.such.module:command", program.GROUP)
    monkeypatch.setattr(program, "entry_points", lambda group: [broken])
    code, out, err = run("limits")
    assert code == 0
    assert "no limits" in out
    assert err == "greenroom: the command 'broken' cannot be loaded (ModuleNotFoundError)\n"


def test_ctrl_c_is_exit_code_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Coordinator, "workers", interrupted)
    assert run("workers") == (130, "", "")


def test_python_dash_m_and_version_and_a_closed_pipe(server: PrivateRedis) -> None:
    command = [sys.executable, "-m", "coordinator"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=30, check=True)
    assert version.stdout == "greenroom 0.1.0\n"
    with subprocess.Popen([*command, "status", "--redis", server.url], stdout=-1, stderr=-1, text=True) as piped:
        assert piped.stdout
        assert piped.stderr
        piped.stdout.close()
        assert piped.stderr.read() == ""


def test_the_coordinator_never_imports_workers() -> None:
    script = "import coordinator.cli, sys; sys.exit(any(name.split('.')[0] == 'workers' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], timeout=30).returncode == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "–"), (0.04, "0.0 s"), (90, "90.0 s"), (600, "10 min"), (7200, "2 h")]
)
def test_lengths_of_time(seconds: float | None, text: str) -> None:
    assert output.span(seconds) == text
