"""What the demo's workers saw, as plain records, and the checks over them: pure functions, so that tests can show each
check a history that is wrong.

Times are seconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn from its request to its end. Its agent was in use from `entered` to `leaving`."""

    worker: str
    session: str
    agent: str  #: '' when the lease was lost during the build: the turn had its session, but was never played
    fence: int
    fresh: bool
    accepted: bool  #: False: its lease was lost, and its end refused
    asked: float
    entered: float
    leaving: float
    left: float
    building: float = 0.0  #: how long the builder took


@dataclass(frozen=True, slots=True)
class Created:
    agent: str
    session: str
    at: float


@dataclass(frozen=True, slots=True)
class Released:
    agent: str
    mode: str
    in_use: bool  #: by the agent's own account
    at: float


@dataclass(frozen=True, slots=True)
class Rested:
    """Between the last turn and leaving: agents held, and agents created and not released."""

    worker: str
    resident: int
    alive: int


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something went wrong on a worker that should not have."""

    worker: str
    what: str


@dataclass(frozen=True, slots=True)
class Left:
    """A worker's last word: it has left the room."""

    worker: str


Record = TurnRecord | Created | Released | Rested | Trouble | Left
_KINDS: dict[str, type[Record]] = {
    kind.__name__: kind for kind in (TurnRecord, Created, Released, Rested, Trouble, Left)
}


@dataclass(slots=True)
class History:
    """Everything that is checked: the records of all workers, and what Redis says."""

    workers: Sequence[str]
    lease: float
    records: list[Record] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    left_behind: Sequence[str] = ()  #: sessions and workers that the room still knew at the end

    def of(self, kind: type[T]) -> list[T]:
        return [record for record in self.records if isinstance(record, kind)]

    def played(self) -> list[TurnRecord]:
        return [turn for turn in self.of(TurnRecord) if turn.agent]


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, and what speaks against it."""

    name: str
    promise: str
    problems: Sequence[str] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


def dump(record: Record) -> str:
    """A record as one line."""
    return json.dumps([type(record).__name__, asdict(record)])


def load(lines: Iterable[str], worker: str) -> list[Record]:
    """The records of a worker's file. A line that was cut off is trouble, not an error."""
    found: list[Record] = []
    for line in lines:
        try:
            kind, fields = json.loads(line)
            found.append(_KINDS[kind](**fields))
        except (ValueError, TypeError, KeyError):
            found.append(Trouble(worker, "a line of its history was cut off"))
    return found


def check(history: History) -> list[Check]:
    """All checks. A history in which nothing happened passes none that says something happened well."""
    return [
        Check("doubled", "no two turns of a session at once", _doubled(history)),
        Check("fences", "fences rise in every session", _fences(history)),
        Check("mid-turn", "no agent was released in its turn, or used after", _released_in_use(history)),
        Check("twice", "no agent was released twice", _twice(history)),
        Check("leaked", "created − released = resident; after leaving none", _leaked(history)),
        Check("counted", "Redis counted the turns that the workers saw", _counted(history)),
        Check("left", "every worker left; the room is empty", _left(history)),
    ]


def _doubled(history: History) -> list[str]:
    problems = []
    for session, turns in _by_session(history).items():
        latest: TurnRecord | None = None
        for turn in turns:
            if latest and _start(turn) < _claimed_until(latest, history.lease):
                problems.append(f"{session}: turn {turn.fence} began during turn {latest.fence}")
            if latest is None or turn.leaving > latest.leaving:
                latest = turn
    return problems


def _claimed_until(turn: TurnRecord, lease: float) -> float:
    """A turn that lost its lease had it for that long at least, whatever it did afterwards."""
    return turn.leaving if turn.accepted else min(turn.leaving, turn.asked + lease)


def _fences(history: History) -> list[str]:
    problems, seen = [], set[int]()
    for session, turns in _by_session(history).items():
        highest = 0
        for turn in turns:
            if turn.fence <= highest:
                problems.append(f"{session}: fence {turn.fence} after {highest}")
            elif turn.fence in seen:
                problems.append(f"{session}: fence {turn.fence} was given twice")
            seen.add(turn.fence)
            highest = max(highest, turn.fence)
    return problems


def _released_in_use(history: History) -> list[str]:
    first: dict[str, float] = {}
    problems = []
    for release in history.of(Released):
        first[release.agent] = min(release.at, first.get(release.agent, math.inf))
        if release.in_use:
            problems.append(f"agent {release.agent} was in use when it was released")
    for turn in history.of(TurnRecord):
        if first.get(turn.agent, math.inf) < turn.leaving:
            problems.append(f"{turn.session}: turn {turn.fence} used agent {turn.agent} after its release")
    return problems


def _twice(history: History) -> list[str]:
    count: dict[str, int] = defaultdict(int)
    for release in history.of(Released):
        count[release.agent] += 1
    return [f"agent {agent} was released {times} times" for agent, times in count.items() if times > 1]


def _leaked(history: History) -> list[str]:
    created, released = history.of(Created), {release.agent for release in history.of(Released)}
    problems = [f"{one.session}: agent {one.agent} was never released" for one in created if one.agent not in released]
    strangers = released - {one.agent for one in created}
    problems += [f"agent {agent} was released and never created" for agent in sorted(strangers)]
    for rest in history.of(Rested):
        if rest.resident != rest.alive:
            problems.append(f"{rest.worker} held {rest.resident} agents, and {rest.alive} were not released")
    return problems


def _counted(history: History) -> list[str]:
    turns = history.played()
    if not turns:
        return ["there was no turn"]
    seen = {"hits": sum(not turn.fresh for turn in turns), "builds": sum(turn.fresh for turn in turns)}
    return [
        f"{name}: the workers saw {count}, Redis counted {history.counters.get(name, 0)}"
        for name, count in seen.items()
        if count != history.counters.get(name, 0)
    ]


def _left(history: History) -> list[str]:
    problems = [f"{trouble.worker}: {trouble.what}" for trouble in history.of(Trouble)]
    gone = {left.worker for left in history.of(Left)}
    problems += [f"{worker} did not leave" for worker in history.workers if worker not in gone]
    return problems + [f"the room still has {what}" for what in history.left_behind]


def summary(history: History) -> dict[str, Any]:
    """The run in numbers; times in milliseconds."""
    turns, counters = history.played(), history.counters
    hits, waited = sum(not turn.fresh for turn in turns), _waited(history)
    direct = [turn for turn in turns if turn.fence not in waited]
    spans = {
        "begin_hit": [turn.entered - turn.asked for turn in direct if not turn.fresh],
        "begin_build": [turn.entered - turn.asked for turn in direct if turn.fresh],
        "begin_build_overhead": [turn.entered - turn.asked - turn.building for turn in direct if turn.fresh],
        "begin_waited": [turn.entered - turn.asked - turn.building for turn in turns if turn.fence in waited],
        "end": [turn.left - turn.leaving for turn in turns],
    }
    evictions = {name[10:]: count for name, count in counters.items() if name.startswith("evictions:")}
    return {
        "turns": len(turns),
        "hits": hits,
        "builds": len(turns) - hits,
        "hit_rate": round(hits / len(turns), 4) if turns else None,
        "moves": counters.get("moves", 0),
        "waits": len(waited),
        "lost": sum(not turn.accepted for turn in history.of(TurnRecord)),
        "over_cap": counters.get("over_cap", 0),
        "evictions": dict(sorted(evictions.items(), key=lambda item: -item[1])),
        "agents": {"created": len(history.of(Created)), "released": len(history.of(Released))},
        "latency_ms": {name: _percentiles(values) for name, values in spans.items()},
    }


def _waited(history: History) -> set[int]:
    """Fences of the turns that were asked for while another turn had the session."""
    waited = set()
    for turns in _by_session(history).values():
        for before, turn in itertools.pairwise(turns):
            if turn.asked < before.left:
                waited.add(turn.fence)
    return waited


def _percentiles(seconds: Sequence[float]) -> dict[str, float | int | None]:
    ranked = sorted(seconds)

    def rank(part: float) -> float | None:
        return round(ranked[math.ceil(part * len(ranked)) - 1] * 1000, 3) if ranked else None

    return {"count": len(ranked), "p50": rank(0.5), "p99": rank(0.99)}


def _start(turn: TurnRecord) -> float:
    """The first moment at which the turn is known to have had its session: its build, if there was one."""
    return turn.entered - turn.building


def _by_session(history: History) -> dict[str, list[TurnRecord]]:
    """Each session's turns in the order in which they began."""
    found: dict[str, list[TurnRecord]] = defaultdict(list)
    for turn in sorted(history.of(TurnRecord), key=_start):
        found[turn.session].append(turn)
    return found
