"""Random lives of a room: three workers, five sessions, and everything that may happen to them.

Each step goes to the real scripts and to the model; then answers, the whole key space and messages must agree.
The machine plays the workers too: they know which copies and turns they have, and present them, mostly rightly.

A life has two parts. Its past is rolled with weights from one seed: dense, and soon at its caps. What comes then is
Hypothesis's own choice of rules, which can be shrunk. Both take the same steps.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from coordinator import operations as ops
from coordinator.answers import Claim, Granted, Maintenance
from coordinator.errors import GreenroomError, WorkerExists
from coordinator.limits import Limits
from coordinator.link import run
from model.model import NO_SNAPSHOT, Refused, Room, message_of
from model.stage import Stage

START = 1_794_977_952_000_000  #: of a size that doubles hold and `tostring` does not
PAST = 40  #: steps
WORKERS = ("w1", "w2", "w3")
SESSIONS = ("s1", "s2", "s3", "s4", "s5")
KEYS = ("", "", "", "c1", "z1", "s5")  #: lease keys: before and after all sessions in order, and a session
LENGTHS = (1_000, 2_500, 2_500, 9_000)  #: of leases, ms
HEARTBEAT = 4_000
PLACES = (0, 2_000, 30_000)  #: how long a place in line lasts, ms; 0: whoever asks does not wait
PACES = (1, 350, 0, 1_700, 40_000)  #: µs that go by before a call, in turn; none at all is allowed too
LIMITS = (
    Limits(room=2, worker=2, idle_ttl=1.0),
    Limits(room=3, worker=1),
    Limits(room=1, idle_ttl=3.0),
    Limits(worker=2, idle_ttl=2.0),
    Limits(),
)
SNAPSHOTS = (b"", NO_SNAPSHOT, b"warm", b"warmer")
TTLS = {b"": 1, NO_SNAPSHOT: 1, b"warm": 3_000, b"warmer": 60_000}  #: how long each lasts, ms
MODES = ("soft", "soft", "hard")
PICKS = tuple(range(12))  #: which of a list, newest first
#: What a turn is for, if that may be delivered again: a delivery ('': its own) and a message.
MESSAGES = ("", "", "", "/m1", "early/m1", "early/m1", "old/m1", "early/m2")
AGES = {"early": 0, "old": 59_500}  #: of a delivery when it comes first, ms
OLDEST = 61_000  #: a delivery comes no more
REMEMBER = {"m1": 70_000, "m2": 1}  #: for how long it is known what became of a message, ms
SELDOM = (False,) * 7 + (True,)
EITHER = (False, True)
AVOIDED = ((), (), ("w1",), ("w2", "w3"))  #: workers to which a session is not to go

SETTINGS = settings(
    stateful_step_count=50, deadline=None, database=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
#: Steps by name: their weight in a room's past, and the values of their arguments.
STEPS: dict[str, tuple[int, dict[str, tuple[Any, ...]]]] = {}


def step(weight: int, **values: tuple[Any, ...]) -> Callable[[Callable[..., None]], Any]:
    """A rule whose arguments are chosen from tuples: by Hypothesis, or by the dice of a room's past."""

    def register(function: Callable[..., None]) -> Any:
        STEPS[function.__name__] = (weight, values)
        strategies: dict[str, Any] = {name: st.sampled_from(choices) for name, choices in values.items()}
        return rule(**strategies)(function)

    return register


@dataclass
class Turn:
    """A turn as its worker knows it, and what it asked with, word for word: a repeat says the same."""

    asked: dict[str, Any]
    state: str = "asked"  #: asked, building, live, over
    fence: int = 0
    generation: int = 0
    key: str = ""

    def __post_init__(self) -> None:
        self.session, self.worker, self.id = self.asked["session"], self.asked["worker"], self.asked["turn"]
        self.key = self.asked.get("key", "")
        self.message = message_of(self.id)


@dataclass
class Process:
    """What a worker process remembers, whatever happens to Redis."""

    instance: str = "first"
    epoch: str = ""
    seen: int = 0  #: the highest fence
    holds: dict[str, tuple[int, str]] = field(default_factory=dict)  #: session → generation, signature
    used: dict[str, int] = field(default_factory=dict)  #: session → fence of the last turn that used the copy


class RoomMachine(RuleBasedStateMachine):
    stage: Stage

    def __init__(self) -> None:
        super().__init__()
        self.stage.clear()
        self.model = Room(now=START, spent_ms=self.stage.link.spent_ms)
        self.processes = defaultdict[str, Process](Process)
        self.turns: list[Turn] = []
        self.made: dict[str, int] = {}  #: delivery → ms
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.limits = Limits()
        self.losses = 0

    # -- both sides ----------------------------------------------------------------------------------------------

    def both(self, name: str, *arguments: Any, model_only: dict[str, Any] | None = None, **named: Any) -> Any:
        """Do it on both sides, compare everything, and give the answer, or the code of a refusal."""
        self.model.now += PACES[len(self.calls) % len(PACES)]
        self.calls.append((name, arguments, named))
        self.stage.set_time(self.model.now)
        self.model.expire()
        try:
            expected = getattr(self.model, name)(*arguments, **named, **(model_only or {}))
        except Refused as refused:
            expected = refused.args[0]
        try:
            answer = run(getattr(ops, name)(self.stage.link, *arguments, **named))
        except WorkerExists:
            answer = "TAKEN"
        except GreenroomError as error:
            answer = str(error.__cause__).split(" ")[0]
        if isinstance(answer, Maintenance):
            answer.endings.sort()
            expected.endings.sort()
        assert answer == expected, f"{name}{arguments}{named} answered {answer}, not {expected}"
        self.compare(name)
        return answer

    def compare(self, after: str) -> None:
        found, sent = self.stage.look()
        wanted = self.model.keyspace()
        differ = {key: (found.get(key), wanted.get(key)) for key in found | wanted if found.get(key) != wanted.get(key)}
        assert not differ, f"after {after}, key: (found, wanted) {differ}"
        assert sent == sorted(self.model.sent), f"after {after} was sent {sent}, not {sorted(self.model.sent)}"
        self.model.sent.clear()

    @initialize(limits=st.sampled_from(LIMITS), seed=st.integers(0, 2**32 - 1))
    def the_room_has_a_past(self, limits: Limits, seed: int) -> None:
        self.limits = limits
        for worker in WORKERS:
            self.join(worker, "up")
        dice = random.Random(seed)
        names, weights = list(STEPS), [weight for weight, _ in STEPS.values()]
        for name in dice.choices(names, weights, k=PAST):
            arguments = {argument: dice.choice(choices) for argument, choices in STEPS[name][1].items()}
            note(f"  {name}({arguments})")
            getattr(self, name)(**arguments)

    # -- turns ---------------------------------------------------------------------------------------------------

    def in_state(self, *states: str) -> list[Turn]:
        return [turn for turn in reversed(self.turns) if turn.state in states]

    def new_turn(self, worker: str, session: str, warm: bool = False, message: str = "", **asked: Any) -> Turn:
        """`warm`: on a session whose copy the worker has, if it has any."""
        process = self.processes[worker]
        if warm and process.holds:
            session = sorted(process.holds)[SESSIONS.index(session) % len(process.holds)]
        generation, signature = process.holds.get(session, (0, "a"))
        asked = {"lease": 2_500, "signature": signature, "generation": generation, "floor": process.seen} | asked
        delivery, _, message = message.partition("/")
        if delivery:
            if self.model.ms - self.made.get(delivery, 0) > OLDEST:
                self.made[delivery] = self.model.ms - AGES[delivery]
            delivery = f"{self.made[delivery]:012x}{delivery}"
        asked["turn"] = f"{worker}/t{len(self.turns)}" + (f"/{delivery}/{message}" if message else "")
        asked["remember"] = REMEMBER.get(message, 1)
        self.turns.append(Turn({"session": session, "worker": worker, **asked}))
        return self.turns[-1]

    def do_begin(self, turn: Turn) -> None:
        answer = self.both("begin", **turn.asked)
        if isinstance(answer, Granted):
            turn.fence, turn.generation = answer.fence, answer.generation
            turn.state = "building" if answer.fresh else "live"
            process = self.processes[turn.worker]
            process.seen = max(process.seen, answer.fence)
        elif answer == "UNKNOWNWORKER":  # rule 8; whoever wants the turn asks again
            self.join(turn.worker, "up")
            self.reconcile(turn.worker, late=False)

    def do_commit(self, turn: Turn) -> None:
        answer = self.both("commit", turn.session, turn.id, self.limits)
        if answer == "UNKNOWNWORKER":  # rule 8: it shows what it holds, and repeats
            self.join(turn.worker, "up")
            self.reconcile(turn.worker, late=False)
            answer = self.both("commit", turn.session, turn.id, self.limits)
        if isinstance(answer, str):
            turn.state = "over"
        else:
            turn.state = "live"
            self.processes[turn.worker].holds[turn.session] = (turn.generation, turn.asked["signature"])

    def do_end(
        self, turn: Turn, stamped: bool = True, evict: str = "", snapshot: bytes = b"", failed: bool = False
    ) -> None:
        answer = self.both(
            "end",
            turn.session,
            turn.id,
            self.limits,
            stamped=stamped,
            evict=evict,
            snapshot=snapshot,
            snapshot_ttl=TTLS[snapshot],
            answer=b"" if failed else f"by {turn.id}".encode(),
            remember=0 if failed else turn.asked["remember"],
        )
        turn.state = "over"
        process = self.processes[turn.worker]
        process.used[turn.session] = max(turn.fence, process.used.get(turn.session, 0))
        if isinstance(answer, str) or answer.mode:
            process.holds.pop(turn.session, None)

    def do_abandon(self, turn: Turn, stamped: bool) -> None:
        self.both("abandon", turn.session, turn.id, self.limits, turn.asked.get("key", ""), stamped=stamped)
        turn.state = "over"

    @step(
        8, worker=WORKERS, session=SESSIONS, signature=("a", "a", "a", "b"), lease=LENGTHS, key=KEYS, queue=PLACES,
        most=(0, 1, 2), affinity=SELDOM, place=EITHER, avoid=AVOIDED, message=MESSAGES, forgot=SELDOM, ahead=SELDOM,
    )  # fmt: skip
    def begin(
        self, worker: str, session: str, signature: str, lease: int, key: str, queue: int, most: int, affinity: bool,
        place: bool, avoid: tuple[str, ...], message: str, forgot: bool, ahead: bool,
    ) -> None:  # fmt: skip
        """`forgot`: without the copy it has. `ahead`: with a fence given out before a failover that lost it."""
        asked: dict[str, Any] = {"lease": lease, "key": key, "queue": queue, "most": most}
        asked |= {"affinity": affinity, "place": place, "avoid": avoid, "message": message}
        asked |= {"generation": 0} if forgot else {}
        asked |= {"floor": self.model.now + 3_000_000} if ahead else {}
        self.do_begin(self.new_turn(worker, session, signature=signature, **asked))

    @step(8, worker=WORKERS, session=SESSIONS, warm=EITHER, lease=LENGTHS, key=KEYS)
    def open_turn(self, worker: str, session: str, warm: bool, lease: int, key: str) -> None:
        """A turn that goes on: what keeps a room over its cap."""
        turn = self.new_turn(worker, session, warm, lease=lease, key=key)
        self.do_begin(turn)
        if turn.state == "building":
            self.do_commit(turn)

    @step(4, worker=WORKERS, delivery=("", "early", "old", "old"), pick=PICKS, place=EITHER)
    def deliver_again(self, worker: str, delivery: str, pick: int, place: bool) -> None:
        """The message of a turn that runs; who delivers it waits."""
        leases = {copy.lease.turn for copy in self.model.copies.values() if copy.lease}
        if turns := [turn for turn in self.turns if turn.message and turn.id in leases]:
            turn = turns[pick % len(turns)]
            message = f"{delivery}/{turn.message}"
            self.do_begin(self.new_turn(worker, turn.session, message=message, queue=30_000, key=turn.key, place=place))

    @step(8, worker=WORKERS, session=SESSIONS, warm=EITHER, message=MESSAGES, stamped=EITHER, snapshot=SNAPSHOTS)
    def serve(self, worker: str, session: str, warm: bool, message: str, stamped: bool, snapshot: bytes) -> None:
        """A whole turn: what fills a room."""
        turn = self.new_turn(worker, session, warm, message)
        self.do_begin(turn)
        if turn.state == "building":
            self.do_commit(turn)
        if turn.state == "live":
            self.do_end(turn, stamped, snapshot=snapshot)

    @step(
        16, how=("on", "on", "on", "abandon", "rebind"), pick=PICKS, stamped=EITHER, failed=SELDOM,
        evict=("", "", "", "soft fallback", "hard reset"), snapshot=SNAPSHOTS, key=("c1", "z1", "s4", "s5", ""),
    )  # fmt: skip
    def turn_goes_on(
        self, how: str, pick: int, stamped: bool, failed: bool, evict: str, snapshot: bytes, key: str
    ) -> None:
        """A turn that has its lease, as far as its worker knows."""
        if not (turns := self.in_state("building", "live")):
            return
        turn = turns[pick % len(turns)]
        if how == "rebind":
            if self.both("rebind", turn.session, turn.id, key or turn.session) is None:
                turn.key = key
        elif how == "abandon":
            self.do_abandon(turn, stamped)
        elif turn.state == "building":
            self.do_commit(turn)
        else:
            self.do_end(turn, stamped, evict, snapshot, failed)

    @step(6, how=("ask", "ask", "give up", "die", "die"), pick=PICKS, most=(0, 1))
    def waiter_goes_on(self, how: str, pick: int, most: int) -> None:
        """A waiter asks again, gives up, or its process dies, its place in line goes stale, and another one comes."""
        asked = self.in_state("asked")
        if not (turns := [turn for turn in asked if turn.id in self.model.waiters] or asked):
            return
        turn = turns[pick % len(turns)]
        if how == "ask":
            self.do_begin(turn)
        elif how == "give up":
            self.do_abandon(turn, stamped=False)
        elif self.model.waiters.pop(turn.id, None):
            self.stage.forget(f"waiter:{turn.id}")
            self.do_begin(self.new_turn(turn.worker, turn.session, queue=2_000, most=most))

    @step(
        6, worker=WORKERS, other=WORKERS, session=SESSIONS, message=("", "early/m1", "old/m1", "old/m1"),
        ms=(30, 1_100), leaves=EITHER, evict=("", "soft fallback", "soft fallback", "hard reset"),
    )  # fmt: skip
    def line_moves_on(
        self, worker: str, other: str, session: str, message: str, ms: int, leaves: bool, evict: str
    ) -> None:
        """One has its turn, another waits for it, asks again meanwhile, and when it is over: by then its worker may be
        draining, or the session ended. What happens seldom if each step is left to chance."""
        first = self.new_turn(worker, session, message="/m1" if message else "")
        self.do_begin(first)
        if first.state == "building":
            self.do_commit(first)
        waits = self.new_turn(other, session, message=message, queue=30_000, place=True)
        self.do_begin(waits)
        self.time_passes(ms)
        if waits.state == "asked":
            self.do_begin(waits)
        if leaves:
            self.join(other, "draining")
        if first.state == "live":
            self.do_end(first, evict=evict)
        if waits.state == "asked":
            self.do_begin(waits)
        if session in self.model.closing:
            owner, generation = self.model.closing[session].split(" ")
            self.maintain("all", owner, late=leaves)
            self.both("closed", owner, self.processes[owner].instance, [(session, int(generation))])

    @step(3, worker=WORKERS, other=WORKERS, session=SESSIONS, cold=SESSIONS, dies=EITHER, message=("early/m1", "/m1"))
    def build_takes_long(self, worker: str, other: str, session: str, cold: str, dies: bool, message: str) -> None:
        """Meanwhile another session is to go somewhere; or its lease runs out, and its message is delivered again."""
        self.do_begin(self.new_turn(worker, session, message=message))
        if dies:
            self.time_passes(2_600)
            self.do_begin(self.new_turn(other, session, message=message))
        else:
            self.do_begin(self.new_turn(other, cold, place=True))

    @step(6, what=("begin", "commit", "end", "abandon"), pick=PICKS)
    def repeat(self, what: str, pick: int) -> None:
        """A call arrives twice, or late: only its turn id makes it safe (rule 6)."""
        calls = [call for call in reversed(self.calls) if call[0] == what]
        if calls:
            name, arguments, named = calls[pick % len(calls)]
            self.both(name, *arguments, **named)

    @step(2, session=SESSIONS, meant=("", "it", "another"))
    def interrupt(self, session: str, meant: str) -> None:
        """`meant`: whichever turn runs, that one, or one before it."""
        copy = self.model.copies.get(session)
        self.both("interrupt", session, fence=copy.fence - (meant == "another") if copy and meant else 0)

    # -- evictions and maintenance -------------------------------------------------------------------------------

    @step(5, session=SESSIONS, mid_turn=EITHER, mode=MODES, worker=("", *WORKERS))
    def evict(self, session: str, mid_turn: bool, mode: str, worker: str) -> None:
        if mid_turn and (turns := self.in_state("building", "live")):
            marked = [turn for turn in turns if (copy := self.model.copies.get(turn.session)) and copy.evict]
            turns = marked or turns
            session = turns[SESSIONS.index(session) % len(turns)].session
        self.both("evict", session, mode, "operator", worker)

    @step(
        3, several=(SESSIONS, ("s1", "s2"), ("s3", "s1", "s5")), mode=MODES, signature=("", "", "b"),
        worker=("", "w1"), skip_busy=EITHER,
    )  # fmt: skip
    def evict_many(self, several: list[str], mode: str, signature: str, worker: str, skip_busy: bool) -> None:
        self.both("evict_many", several, mode, "memory", signature=signature, worker=worker, skip_busy=skip_busy)

    @step(5, pick=PICKS, wrong=SELDOM, stale=SELDOM)
    def session_is_ended(self, pick: int, wrong: bool, stale: bool) -> None:
        """An end was carried out, and is reported; `wrong`: another than the one that is to be done; `stale`: by an
        instance whose place was taken."""
        if closing := list(self.model.closing.items()):
            session, value = closing[pick % len(closing)]
            owner, generation = value.split(" ")
            instance = "another" if stale else self.processes[owner].instance
            self.both("closed", owner, instance, [(session, int(generation) + wrong)])

    @step(5, steps=("all", "all", "reap", "sweep", "caps"), worker=("", *WORKERS), late=SELDOM)
    def maintain(self, steps: str, worker: str, late: bool) -> None:
        """`late`: another worker had this second's maintenance already."""
        self.stage.forget("maintenance")
        if late:
            self.stage.put("maintenance", "another")
        self.both("maintain", steps, self.limits, worker=worker, paced=True, model_only={"turn_of_another": late})

    @step(6, ms=(30, 400, 400, 1_100, 1_100, 2_600, 5_000, -500, -3_000, -600_000))
    def time_passes(self, ms: int) -> None:
        """Below zero: the clock was set back."""
        self.model.now += ms * 1_000

    # -- workers -------------------------------------------------------------------------------------------------

    def join(self, worker: str, state: str) -> None:
        process = self.processes[worker]
        answer = self.both(
            "register", worker, HEARTBEAT, epoch=process.epoch, floor=process.seen, address=f"http://{worker}",
            host="here", pid=7, state=state, instance=process.instance, cap=self.limits.worker,
        )  # fmt: skip
        process.epoch = answer[0] if answer != "TAKEN" else process.epoch

    @step(3, worker=WORKERS, draining=SELDOM, again=SELDOM)
    def register(self, worker: str, draining: bool, again: bool) -> None:
        """Whoever is not up comes first: a room without workers has no life. `again`: its process was started anew."""
        known = self.model.workers
        if again:
            self.processes[worker] = Process(instance=f"after {len(self.calls)} calls")
            self.join(worker, "up")
            return
        down = [name for name in WORKERS if name not in known or known[name].state != "up"]
        self.join(down[0] if down else worker, "draining" if draining else "up")

    @step(4, worker=WORKERS, late=SELDOM)
    def beat(self, worker: str, late: bool) -> None:
        """`late`: it renews turns that are over as well."""
        states = ("asked", "building", "live", "over") if late else ("building", "live")
        turns = [turn for turn in self.in_state(*states) if turn.worker == worker]
        pairs = [(turn.session, turn.id) for turn in turns]
        answer = self.both("beat", worker, HEARTBEAT, self.processes[worker].instance, pairs)
        for turn in turns if not isinstance(answer, str) else ():
            turn.state = "over" if turn.id in answer[2] else turn.state

    @step(4, worker=WORKERS, late=SELDOM)
    def reconcile(self, worker: str, late: bool) -> None:
        """The worker shows what it has; `late`: with turns that are over by now."""
        holds, copies = self.processes[worker].holds, {}
        for session, (generation, signature) in holds.items():
            used = max(generation, self.processes[worker].used.get(session, 0))
            copies[session] = Claim(session, generation, signature, "live", "", used, "", stamped=True)
        for turn in reversed(self.in_state("building", "live", *(("over",) if late else ()))):
            if turn.worker == worker and turn.fence:
                copies[turn.session] = Claim(
                    turn.session, turn.generation, turn.asked["signature"], turn.state.replace("over", "live"),
                    turn.id, turn.fence, turn.key, stamped=True,
                )  # fmt: skip
        answers = self.both("claim", worker, 2_500, self.processes[worker].seen, list(copies.values()))
        for session, answer in zip(copies, answers if isinstance(answers, list) else (), strict=False):
            if answer != "keep":
                holds.pop(session, None)

    @step(
        3, what=("drain", "deregister", "set_limits", "disown"), worker=WORKERS,
        session=SESSIONS, limits=(None, *LIMITS), wrong=SELDOM,
    )  # fmt: skip
    def something_rare(self, what: str, worker: str, session: str, limits: Limits | None, wrong: bool) -> None:
        if what == "drain":
            self.both(what, worker)
        elif what == "deregister":
            self.both(what, worker, "another" if wrong else self.processes[worker].instance)
        elif what == "set_limits":
            self.both(what, limits)
        elif copy := self.model.copies.get(session):
            self.both(what, worker if wrong else copy.worker, [(session, copy.generation)])

    @step(2, first=("w1", "w2", "new"), second=WORKERS)
    def state_is_lost(self, first: str, second: str) -> None:
        """Redis was flushed. Veterans open grace, whether or not a new worker comes first (rule 15)."""
        if self.losses < 2:
            self.losses += 1
            self.stage.clear()
            self.model = Room(now=self.model.now, spent_ms=self.stage.link.spent_ms)
            for worker in (first, second):
                self.join(worker, "up")
                self.reconcile(worker, late=False)
