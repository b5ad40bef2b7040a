"""Fencing all the way: a store that checks the fence refuses what a paused worker writes when it wakes up."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.plain import Agent

from coordinator.private_redis import PrivateRedis
from workers import Worker

EXAMPLES = Path(__file__).parents[2] / "examples"
_example = runpy.run_path(str(EXAMPLES / "transcript.py"))
Transcript: Any = _example["Transcript"]
StaleFence: Any = _example["StaleFence"]

_PAUSED = """
import sys
sys.path.insert(0, sys.argv[4])
from coordinator import LeaseLost
from transcript import StaleFence, Transcript
from workers import Worker
store = Transcript(sys.argv[3])
with Worker(lambda request: object(), redis=sys.argv[1], room=sys.argv[2], lease=1.0) as worker:
    try:
        with worker.turn("chat") as turn:
            print("mid-turn", flush=True)
            sys.stdin.readline()
            try:
                store.append("chat", turn.fence, [("assistant", "late")])
                print("written", flush=True)
            except StaleFence:
                print("refused by the store", flush=True)
    except LeaseLost:
        print("refused by Redis", flush=True)
"""


def test_a_worker_that_was_paused_is_refused_by_the_store(server: PrivateRedis, room: str, tmp_path: Path) -> None:
    path = str(tmp_path / "transcript.db")
    command = [sys.executable, "-c", _PAUSED, server.url, room, path, str(EXAMPLES)]
    paused = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert paused.stdout
    assert paused.stdin
    try:
        assert paused.stdout.readline() == "mid-turn\n"
        os.kill(paused.pid, signal.SIGSTOP)
        store = Transcript(path)
        with Worker(Agent, redis=server.url, room=room, lease=1.0) as worker, worker.turn("chat", wait=20) as turn:
            store.append("chat", turn.fence, [("user", "hello"), ("assistant", "in time")])
        os.kill(paused.pid, signal.SIGCONT)
        out, _ = paused.communicate("go on\n", timeout=20)
        assert out == "refused by the store\nrefused by Redis\n"
        assert store.messages("chat") == [("user", "hello"), ("assistant", "in time")]
        store.close()
    finally:
        paused.kill()
        paused.communicate()


def test_a_write_is_all_or_nothing(tmp_path: Path) -> None:
    store = Transcript(str(tmp_path / "t.db"))
    store.append("s", 5, [("user", "a")])
    store.append("s", 5, [("assistant", "b")])
    with pytest.raises(StaleFence):
        store.append("s", 4, [("user", "x"), ("assistant", "y")])
    with pytest.raises(ValueError, match="unpack"):
        store.append("s", 6, [("user", "c"), ("bad",)])
    assert (store.fence("s"), store.fence("other")) == (5, 0)
    assert store.messages("s") == [("user", "a"), ("assistant", "b")]
    store.close()


def test_a_floor_keeps_fences_rising_when_redis_lost_its_clock(source: Any, room: str) -> None:
    with Worker(Agent, redis=source, room=room) as worker:
        ahead = 2**52  # what the store has seen, far above any clock
        with worker.turn("s", floor=ahead) as turn:
            assert turn.fence == ahead + 1
        with worker.turn("s") as turn:
            assert turn.fence == ahead + 4, "commit and end took a tick each"
