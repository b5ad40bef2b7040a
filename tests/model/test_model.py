"""The scripts do what the model says, step by step, in random lives of a room.

GREENROOM_MODEL_EXAMPLES=5000 makes it a long run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from model.machine import SETTINGS, WORKERS, RoomMachine
from model.stage import Stage, library

#: Scripts are under test here, not the packages: coverage would only slow it down.
pytestmark = pytest.mark.no_cover

#: An example takes fakeredis about four times as long; it is asked whether it agrees at all.
EXAMPLES = {"real": 200, "fake": 25}
WANTED = int(os.environ.get("GREENROOM_MODEL_EXAMPLES") or 0)


@pytest.fixture
def machine(source: Any, client: redis.Redis, room: str) -> Iterator[type[RoomMachine]]:
    stage = Stage(source, client, room, library())
    yield type("Machine", (RoomMachine,), {"stage": stage})
    stage.close()


@pytest.mark.timeout(0 if WANTED else 600)  # a failure is shrunk before it is shown: up to five minutes
def test_scripts_agree_with_the_model(backend: str, machine: type[RoomMachine]) -> None:
    run_state_machine_as_test(machine, settings=settings(SETTINGS, max_examples=WANTED or EXAMPLES[backend]))


def test_doomed_turn_gives_up_both_its_names_at_once(machine: type[RoomMachine]) -> None:
    """Maintenance looks at the furthest leases when the clock was set back: at a lease key, but not at its session.

    If it freed the key alone, the next turn could take it, and the doomed one would free *that* lease when it goes.
    Random lives come here too seldom.
    """
    life = machine()
    for worker in WORKERS:
        life.join(worker, "up")
    life.do_begin(life.new_turn("w1", "s1", key="z1"))
    for session in ("s2", "s3", "s4"):
        life.time_passes(1)
        life.do_begin(life.new_turn("w1", session))
    life.time_passes(-600_000)
    life.maintain("reap", worker="", late=False)
    taken = life.new_turn("w2", "z1")
    life.do_begin(taken)
    life.do_begin(life.new_turn("w3", "s1"))
    life.do_commit(taken)
    assert taken.state == "live"
