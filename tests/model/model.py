"""The rules of a room, as plain Python over plain dicts: what every script must answer and leave behind.

Written from DESIGN.md (the rule numbers below are its), not from the Lua. The one thing kept is the copies themselves;
`lru`, `held:*`, `activity`, `leases`, `aliases` and `signatures` are *derived* from them, so no index of the model can
drift from its records. Answers have the words of `coordinator.operations`; an error is `Refused` with its code.
Time is `now`, in µs, and is set by whoever drives the model. Batches have no bound here: tests stay below it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from coordinator.answers import Answered, Busy, Claim, Died, Elsewhere, Ended, Evicted, Granted, Maintenance
from coordinator.keys import SCHEMA
from coordinator.limits import Limits

NO_SNAPSHOT = b"\xc0"  #: an end that says: this turn has none (rule 12)
DELIVERY_MS = 60_000  #: for how long a delivery may get a turn
FURTHEST = 4  #: how many leases and heartbeats, furthest away first, maintenance checks for a clock that was set back


class Refused(Exception):
    """A script's typed failure; its only argument is the code."""


@dataclass
class Lease:
    turn: str
    length: int
    since: int
    expiry: int
    key: str = ""  #: a second name the turn holds its lease under (rule 9)


@dataclass
class Copy:
    worker: str
    signature: str
    generation: int
    fence: int
    state: str = "building"
    lease: Lease | None = None  #: the turn in the record; it may have run out
    tick: int = 0  #: of its last use
    active: int | None = None  #: ms of its last activity; None: mid-turn, or never idle
    evict: str = ""  #: '<mode> <reason>' that waits for the turn's end


@dataclass
class Worker:
    expiry: int
    lease: int
    state: str
    about: dict[str, Any]


@dataclass
class Room:
    now: int
    clock: int = 0
    epoch: str = ""
    grace: tuple[int, int] | None = None  #: its expiry and its length, ms
    copies: dict[str, Copy] = field(default_factory=dict)
    workers: dict[str, Worker] = field(default_factory=dict)
    queues: dict[str, dict[str, int]] = field(default_factory=dict)
    waiters: dict[str, str] = field(default_factory=dict)
    snapshots: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    closing: dict[str, str] = field(default_factory=dict)
    gone: dict[str, int] = field(default_factory=dict)  #: fence of what went during grace
    over: dict[str, int] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    counters: Counter[str] = field(default_factory=Counter)
    journal: list[tuple[str, str, str]] = field(default_factory=list)  #: event, whose, reason
    sent: list[tuple[str, str, str, str]] = field(default_factory=list)  #: worker, mode, session, detail
    answers: dict[str, dict[str, str]] = field(default_factory=dict)  #: '<session>:<message>' → turn, answer
    lasts: dict[str, int] = field(default_factory=dict)  #: key with a time to live → ms when it is over
    spent_ms: int = 30_000  #: how long an end is remembered

    # -- time (rules 1, 2) ---------------------------------------------------------------------------------------

    @property
    def ms(self) -> int:
        return self.now // 1000

    def expire(self) -> None:
        """What had a time to live, and is over: whoever drives the model calls this before each operation."""
        kept: dict[str, dict[str, Any]] = {
            "waiting": self.queues, "waiter": self.waiters, "snapshot": self.snapshots, "gone": self.gone,
            "ended": self.ended, "answer": self.answers,
        }  # fmt: skip
        for key in [key for key, until in self.lasts.items() if until <= self.ms]:
            del self.lasts[key]
            kind, _, name = key.partition(":")
            kept[kind].pop(name, None)

    def tick(self, floor: int = 0) -> int:
        self.clock = max(self.clock + 1, self.now, floor + 1)
        return self.clock

    def until(self, expiry: int, length: int) -> int:
        """ms left; an expiry further away than its length is over: the clock was set back."""
        left = expiry - self.ms
        return left if 0 < left <= length else 0

    def left(self, copy: Copy | None) -> int:
        """ms that the copy's turn still has; 0: none, or it ran out."""
        return self.until(copy.lease.expiry, copy.lease.length) if copy and copy.lease else 0

    # -- who holds what, who waits -------------------------------------------------------------------------------

    def held(self, worker: str = "") -> list[str]:
        """Sessions with a live copy, oldest first."""
        live = (s for s, c in self.copies.items() if c.state == "live" and worker in ("", c.worker))
        return sorted(live, key=lambda s: self.copies[s].tick)

    def leases(self) -> dict[str, int]:
        """Every name under which a turn holds a lease, and when it runs out."""
        turns = [(s, c.lease) for s, c in self.copies.items() if c.lease]
        return {name: lease.expiry for s, lease in turns for name in (s, lease.key) if name}

    def lease_on(self, name: str) -> Copy | None:
        """Whose turn holds a name. A lease that ran out dooms its copy, which goes now (rule 4)."""
        for session, copy in list(self.copies.items()):
            if copy.lease and name in (session, copy.lease.key):
                if self.left(copy):
                    return copy
                self.drop(session, "soft", "lost")
        return None

    def head(self, name: str) -> str:
        """First in line; whoever stopped asking is skipped, and taken out (rule 7)."""
        queue = self.queues.get(name, {})
        for turn in sorted(queue, key=queue.__getitem__):
            if turn in self.waiters:
                return turn
            del queue[turn]
        return ""

    def wake(self, name: str) -> None:
        if turn := self.head(name):
            self.sent.append((self.waiters[turn], "wake", name, turn))

    def leave_queue(self, names: Iterable[str], turn: str) -> None:
        self.waiters.pop(turn, None)
        for name in names:
            if self.queues.get(name, {}).pop(turn, None) and name not in self.leases():
                self.wake(name)

    def free(self, session: str, copy: Copy) -> None:
        """A turn gives up its lease, under both its names."""
        lease, copy.lease = copy.lease, None
        assert lease
        self.wake(session)
        if lease.key:
            self.wake(lease.key)

    def current(self, session: str, turn: str) -> Copy | None:
        """The turn's copy while the turn may still change anything (rule 4)."""
        copy = self.copies.get(session)
        if not copy or not copy.lease or copy.lease.turn != turn:
            return None
        return copy if self.lease_on(session) else None

    def refuse(self, turn: str) -> Refused:
        """A turn that is not current: lost, or its worker has to join again first (rules 4, 8)."""
        worker, slash, _ = turn.partition("/")
        return Refused("UNKNOWNWORKER" if slash and worker not in self.workers else "LOST")

    # -- evictions (rules 10, 11) --------------------------------------------------------------------------------

    def note(self, event: str, whose: str, reason: str = "") -> None:
        self.journal.append((event, whose, reason))

    def drop(self, session: str, mode: str, reason: str) -> str:
        copy = self.copies.pop(session)
        if copy.lease:
            self.free(session, copy)
            self.counters["lost"] += 1
        if copy.evict.startswith("hard"):
            mode = "hard"
        if copy.state == "live":
            self.counters[f"evictions:{reason}"] += 1
        if mode == "hard":
            self.order_ending(session, copy.worker, copy.generation)
        self.bury(session, copy.fence)
        self.note(reason if reason in ("lost", "moved") else "evicted", session, reason)
        self.sent.append((copy.worker, mode, session, str(copy.generation)))
        return mode

    def order_ending(self, session: str, worker: str, generation: int) -> None:
        """The session's end is to be carried out before its new life (rule 11a)."""
        self.snapshots.pop(session, None)
        self.closing[session] = f"{worker} {generation}"

    def ending(self, session: str, worker: str) -> tuple[str, int] | None:
        """Whose it is to end the session: of nobody or of a dead worker, it falls to this one."""
        if session not in self.closing:
            return None
        owner, generation = self.closing[session].split(" ")
        if worker and owner != worker and not self._alive(owner):
            owner = worker
            self.closing[session] = f"{owner} {generation}"
        return owner, int(generation)

    def bury(self, session: str, fence: int) -> None:
        """What goes while owners re-assert is not to be re-asserted (rule 15)."""
        if self.grace_left():
            self.gone[session] = fence
            self.lasts[f"gone:{session}"] = self.ms + self.grace_left()

    def evict_copy(self, session: str, mode: str, reason: str) -> str:
        copy = self.copies[session]
        if not self.left(copy):
            self.drop(session, mode, reason)
            return "evicted"
        if not copy.evict or mode == "hard":
            copy.evict = f"{mode} {reason}"
        return "marked"

    def enforce(self, index: str, cap: int | None) -> tuple[int, int]:
        """The excess window (B22): how many went, and how far over the cap it stays, once an episode (B24)."""
        worker = index.removeprefix("held:") if index != "lru" else ""
        if cap is None:
            return 0, 0
        size = len(self.held(worker))
        for session in self.held(worker)[: max(0, size - cap)]:
            lease = self.copies[session].lease
            if not lease or lease.expiry <= self.ms:  # one that is too far away is for maintenance to see to
                self.drop(session, "soft", "lost" if lease else "lru")
        dropped, over = size - len(self.held(worker)), len(self.held(worker)) - cap
        if over <= 0:
            self.over.pop(index, None)
            return dropped, 0
        if index in self.over:
            return dropped, 0
        self.over[index] = over
        self.counters["over_cap"] += 1
        self.note("over-cap", index)
        return dropped, over

    def limit(self, name: str, own: float | None) -> int | None:
        """The operator's limit, else the caller's (rule 18)."""
        if name in self.settings:
            return None if self.settings[name] == "none" else int(self.settings[name])
        return None if own is None else int(own * 1000 if name == "idle_ttl" else own)

    def enforce_caps(self, worker: str, limits: Limits) -> int:
        held = self.enforce(f"held:{worker}", self.limit("worker", limits.worker))
        return max(held[1], self.enforce("lru", self.limit("room", limits.room))[1])

    # -- turns (rules 3 to 9) ------------------------------------------------------------------------------------

    def begin(
        self, *, session: str, worker: str, turn: str, signature: str, generation: int, lease: int,
        floor: int = 0, key: str = "", queue: int = 0, most: int = 0, affinity: bool = False, place: bool = False,
        avoid: Sequence[str] = (), remember: int = 1,
    ) -> Granted | Busy | Elsewhere | Answered | Died:  # fmt: skip
        if turn in self.ended:
            raise Refused("ENDED")
        copy = self.copies.get(session)
        if copy and copy.lease and copy.lease.turn == turn and self.left(copy):
            return self._granted(session, copy, signature)
        if settled := self._settled(session, turn, copy, queue):
            self.leave_queue([session, key] if key else [session], turn)
            return settled
        doomed = copy is not None and copy.lease is not None and not self.left(copy)
        mine = copy is not None and copy.worker == worker and not doomed  # a doomed copy is nobody's
        if affinity and copy and copy.worker != worker and self._serves(copy.worker):
            return Elsewhere(copy.worker, *self._where(copy.worker), self.ms)
        if not (copy and mine and copy.generation == generation):
            if worker not in self.workers:
                raise Refused("UNKNOWNWORKER")
            held = mine or (copy and copy.worker != worker and self._serves(copy.worker))
            leaves = not mine and self.workers[worker].state == "draining"
            if place and not held and (leaves or turn not in self.waiters) and (best := self._best(worker, avoid)):
                return Elsewhere(best, *self._where(best), self.ms)
            if leaves:
                raise Refused("DRAINING")

        names = [session] if key in ("", session) else [session, key]

        def full(name: str) -> bool:
            line = self.queues.get(name, {})
            if len(line) < most or turn in line:
                return False
            for waiter in [waiter for waiter in line if waiter not in self.waiters]:
                del line[waiter]
            return len(line) >= most

        def busy(why: str, theirs: Copy | None, left: int, ending: tuple[str, int] = ("", 0)) -> Busy:
            waits = queue > 0
            if waits and most and any(full(name) for name in names):
                waits, why = False, "full"
            if waits:
                tick = self.tick(floor)
                lapsed = turn not in self.waiters  # a place that lapsed in one line is given up in all
                self.waiters[turn] = worker
                self.lasts[f"waiter:{turn}"] = self.ms + queue
                for name in names:
                    line = self.queues.setdefault(name, {})
                    if lapsed:
                        line.pop(turn, None)
                    until = self.ms + 4 * queue  # a line lasts for as long as the longest of its places, and more
                    self.lasts[f"waiting:{name}"] = max(until, self.lasts[f"waiting:{name}"]) if line else until
                    line.setdefault(turn, tick)
            ahead = 0
            for name in names:
                places = sorted(self.queues.get(name, {}).items(), key=lambda place: place[1])
                before = [waiting for waiting, _ in places]
                ahead = max(ahead, before.index(turn) if waits else len(before))
            if not theirs or not theirs.lease:
                return Busy(why, ending[0], left / 1000, 0.0, ahead, ending[1])
            ran = (self.ms - theirs.lease.since) / 1000
            return Busy(why, theirs.worker, left / 1000, ran, ahead, theirs.fence)

        for name in names:
            if theirs := self.lease_on(name):
                assert theirs.lease
                same = theirs is self.copies.get(session) and message_of(turn) == message_of(theirs.lease.turn) != ""
                return busy("repeat" if same else "turn", theirs, self.left(theirs))
            if self.head(name) not in ("", turn):
                return busy("queue", None, 0)
        copy = self.copies.get(session)  # gone, if its lease had run out
        if ending := self.ending(session, worker):
            if ending[0] not in ("", worker):
                self.sent.append((ending[0], "hard", session, str(ending[1])))
            return busy("closing", None, 0, ending)
        if (not copy or len(names) > 1) and (grace := self.grace_left()):
            return busy("grace", None, grace)

        fence = self.tick(floor)
        same = copy and mine and (copy.generation, copy.signature) == (generation, signature)
        if not (copy and same and copy.state == "live"):
            if copy:
                reason = "signature" if copy.signature != signature else "lost" if mine else "moved"
                self.drop(session, "soft", reason)
                self.counters["moves"] += reason == "moved"
            copy = self.copies[session] = Copy(worker, signature, generation=fence, fence=fence)
        else:
            self.counters["hits"] += 1
        copy.fence, copy.active = fence, None
        copy.lease = Lease(turn, lease, self.ms, self.ms + lease, key if key in names[1:] else "")
        if message_of(turn):
            self._keep(session, turn, {"turn": turn}, remember)
        if any(turn in self.queues.get(name, {}) for name in names):
            self.leave_queue(names, turn)
        return self._granted(session, copy, signature)

    def _granted(self, session: str, copy: Copy, signature: str) -> Granted:
        if copy.generation != copy.fence:
            return Granted(copy.fence, copy.generation, fresh=False)
        saved = self.snapshots.get(session, {})
        data = saved["data"] if saved.get("signature") == signature else b""
        return Granted(copy.fence, copy.fence, fresh=True, snapshot=data)

    def _alive(self, worker: str) -> bool:
        known = self.workers.get(worker)
        return known is not None and self.until(known.expiry, known.lease) > 0

    def _serves(self, worker: str) -> bool:
        return self._alive(worker) and self.workers[worker].state == "up"

    def _best(self, asking: str, avoid: Sequence[str]) -> str:
        """Where there is more room than at whoever asks, '' if nowhere: by room under the cap, then by turns. Three
        workers are all looked at; of those that are alike it depends on the time which one it is."""
        turns, building = self.turns(), self.building()
        names = sorted(self.workers, key=lambda name: (self.workers[name].expiry, name))
        names.reverse()

        def load(worker: str) -> tuple[int, int]:
            cap = self.limit("worker", self.workers[worker].about["cap"] or None)
            taken = len(self.held(worker)) + building.get(worker, 0)
            return taken - (2**40 if cap is None else int(cap)), turns.get(worker, 0)

        turned = [names[(i + self.now) % len(names)] for i in range(1, len(names) + 1)]
        able = [name for name in turned if self._serves(name) and name not in avoid]
        best = min(able, key=load, default="")
        return "" if not best or (asking in able and load(asking) == load(best)) else best

    def _where(self, worker: str) -> tuple[str, str]:
        about = self.workers[worker].about
        return about["address"], about["instance"]

    def turns(self) -> dict[str, int]:
        return dict(Counter(copy.worker for copy in self.copies.values() if copy.lease))

    def building(self) -> dict[str, int]:
        return dict(Counter(copy.worker for copy in self.copies.values() if copy.lease and copy.state == "building"))

    # -- messages that may come twice (H18) ----------------------------------------------------------------------

    def _settled(self, session: str, turn: str, copy: Copy | None, queue: int) -> Answered | Died | None:
        known = self.answers.get(f"{session}:{message_of(turn)}", {})
        if "answer" in known:
            return Answered(known["answer"])
        delivery, earlier = _delivery(turn), known.get("turn", "")
        if not delivery or earlier == turn:
            return None
        if copy and copy.lease and self.left(copy) and _delivery(copy.lease.turn) == delivery:
            self._keep(session, copy.lease.turn, {"turn": copy.lease.turn}, 2 * queue)
            return None  # it runs
        late = self.ms - int(delivery[:12], 16) > DELIVERY_MS and turn not in self.waiters
        return Died() if late or _delivery(earlier) == delivery else None

    def _keep(self, session: str, turn: str, known: dict[str, str], ms: int) -> None:
        name = f"{session}:{message_of(turn)}"
        self.answers[name] = self.answers.get(name, {}) | known
        until = self.ms + max(ms, DELIVERY_MS + 1_000)
        self.lasts[f"answer:{name}"] = max(self.lasts.get(f"answer:{name}", 0), until)

    def _save(self, session: str, copy: Copy, data: bytes, ttl: int) -> None:
        if data == NO_SNAPSHOT:
            self.snapshots.pop(session, None)
        elif data:
            before = self.lasts.get(f"snapshot:{session}", 0) if session in self.snapshots else 0
            self.snapshots[session] = {"signature": copy.signature, "fence": copy.fence, "data": data}
            self.lasts[f"snapshot:{session}"] = max(before, self.ms + ttl)

    def _spend(self, turn: str, answer: str) -> None:
        self.ended[turn] = answer
        self.lasts[f"ended:{turn}"] = self.ms + self.spent_ms

    def commit(self, session: str, turn: str, limits: Limits) -> Ended:
        copy = self.current(session, turn)
        if not copy:
            raise self.refuse(turn)
        if copy.state == "live":
            return Ended()
        if copy.worker not in self.workers:
            raise Refused("UNKNOWNWORKER")
        copy.state, copy.tick = "live", self.tick()
        self.counters["builds"] += 1
        self.note("built", session)
        return Ended(over=self.enforce_caps(copy.worker, limits))

    def end(
        self, session: str, turn: str, limits: Limits, *, stamped: bool, evict: str = "", snapshot: bytes = b"",
        snapshot_ttl: int = 1, answer: bytes = b"", remember: int = 0,
    ) -> Ended:  # fmt: skip
        copy = self.current(session, turn)
        if not copy or copy.state != "live":
            before = self.ended.get(turn, "abandoned")
            if before in ("abandoned", "over"):
                raise self.refuse(turn)
            mode, reason = ("", "") if before == "kept" else before.split()
            return Ended(mode, reason)
        self.free(session, copy)
        wanted = evict if evict.startswith("hard") else copy.evict or evict
        if wanted:
            mode, reason = wanted.split()
            if mode == "soft":
                self._save(session, copy, snapshot, snapshot_ttl)
            mode = self.drop(session, mode, reason)
            self._spend(turn, f"{mode} {reason}")
            self._answered(session, turn, answer, remember)
            return Ended(mode, reason, self.enforce_caps(copy.worker, limits))
        copy.tick, copy.active = self.tick(), self.ms if stamped else None
        self._save(session, copy, snapshot, snapshot_ttl)
        self._spend(turn, "kept")
        self._answered(session, turn, answer, remember)
        return Ended(over=self.enforce_caps(copy.worker, limits))

    def _answered(self, session: str, turn: str, answer: bytes, remember: int) -> None:
        """Whoever delivers the message again, and waits, is woken."""
        if not remember or not message_of(turn):
            return
        self._keep(session, turn, {"turn": turn, "answer": answer.decode()}, remember)
        for waiter in self.queues.get(session, {}):
            if message_of(waiter) == message_of(turn) and waiter in self.waiters:
                self.sent.append((self.waiters[waiter], "wake", session, waiter))

    def abandon(self, session: str, turn: str, limits: Limits, key: str = "", *, stamped: bool = False) -> bool:
        if turn in self.ended:
            return self.ended[turn] == "over"
        self.leave_queue([session, key], turn)
        self._spend(turn, "abandoned")
        copy = self.current(session, turn)
        if not copy:
            return False
        self.free(session, copy)
        if self.answers.get(f"{session}:{message_of(turn)}", {}).get("turn") == turn:
            del self.answers[f"{session}:{message_of(turn)}"]
        if copy.state == "building":
            del self.copies[session]
            if copy.evict.startswith("hard"):
                self.order_ending(session, copy.worker, copy.generation)
                self.ended[turn] = "over"
        elif copy.evict or copy.generation == copy.fence:  # what this turn built goes, even after its commit
            self.drop(session, *(copy.evict or "soft lost").split())
        else:
            copy.active = self.ms if stamped else None
        self.enforce_caps(copy.worker, limits)
        return self.ended[turn] == "over"

    def rebind(self, session: str, turn: str, key: str) -> Busy | None:
        copy = self.current(session, turn)
        if not copy or not copy.lease:
            raise self.refuse(turn)
        old = copy.lease.key
        if (old or session) == key:
            return None
        if key != session and (theirs := self.lease_on(key)):
            assert theirs.lease
            return Busy("turn", theirs.worker, self.left(theirs) / 1000, (self.ms - theirs.lease.since) / 1000)
        copy.lease.key = "" if key == session else key
        if old:
            self.wake(old)
        return None

    def interrupt(self, session: str, fence: int = 0) -> bool:
        copy = self.copies.get(session)
        if not copy or not self.left(copy) or fence not in (0, copy.fence):
            return False
        self.sent.append((copy.worker, "interrupt", session, str(copy.fence)))
        return True

    def evict(self, session: str, mode: str, reason: str, worker: str = "") -> Evicted:
        if copy := self.copies.get(session):
            return Evicted(self.evict_copy(session, mode, reason), copy.worker, copy.generation)
        if mode == "soft":
            self.bury(session, self.clock)
            return Evicted("absent")
        if not (ending := self.ending(session, worker)):
            ending = (worker, self.tick())
            self.order_ending(session, *ending)
        self.bury(session, self.clock)
        return Evicted("ending", *ending)

    def evict_many(
        self, sessions: Sequence[str], mode: str, reason: str, *, signature: str = "", worker: str = "",
        skip_busy: bool = False,
    ) -> tuple[int, int]:  # fmt: skip
        done = Counter[str]()
        for session in sessions:
            copy = self.copies.get(session)
            fits = copy and signature in ("", copy.signature) and worker in ("", copy.worker)
            if fits and not (skip_busy and self.left(copy)):
                done[self.evict_copy(session, mode, reason)] += 1
        return done["evicted"], done["marked"]

    def closed(self, worker: str, instance: str, endings: Iterable[tuple[str, int]]) -> None:
        if worker in self.workers and self.workers[worker].about["instance"] != instance:
            return
        for session, generation in endings:
            if self.closing.get(session) == f"{worker} {generation}":
                del self.closing[session]
                self.wake(session)

    # -- workers (rules 8, 13 to 15, 18) -------------------------------------------------------------------------

    def register(
        self, worker: str, lease: int, *, epoch: str, floor: int, address: str, host: str, pid: int, state: str,
        instance: str, cap: int | None = None,
    ) -> tuple[str, float]:  # fmt: skip
        known = self.workers.get(worker)
        self.settings["schema"] = SCHEMA
        if known and known.about["instance"] != instance and self._alive(worker):
            raise Refused("TAKEN")
        if not self.epoch:
            self.epoch, self.grace = str(self.tick(floor)), None
        if epoch not in ("", self.epoch) and not self.grace:
            self.grace = (self.ms + lease, lease)
        same = known and known.about["instance"] == instance
        if not same:
            self.note("up", worker)
        started = known.about["started"] if known and same else self.ms
        about = {"address": address, "host": host, "pid": pid, "started": started, "instance": instance}
        about["cap"] = cap or ""
        self.workers[worker] = Worker(self.ms + lease, lease, state, about)
        return self.epoch, self.grace_left() / 1000

    def grace_left(self) -> int:
        return self.until(*self.grace) if self.grace else 0

    def beat(
        self, worker: str, lease: int, instance: str, turns: Sequence[tuple[str, str]]
    ) -> tuple[str, str, set[str]]:
        if worker not in self.workers:
            raise Refused("UNKNOWNWORKER")
        if self.workers[worker].about["instance"] != instance:
            raise Refused("TAKEN")
        known = self.workers[worker]
        known.expiry = self.ms + lease
        lost = set()
        for session, turn in turns:
            copy = self.copies.get(session)
            if copy and copy.lease and copy.lease.turn == turn and self.left(copy):
                copy.lease.expiry = self.ms + copy.lease.length
            else:
                lost.add(turn)
        return self.epoch, known.state, lost

    def drain(self, worker: str) -> bool:
        if known := self.workers.get(worker):
            if known.state != "draining":
                known.state = "draining"
                self.note("draining", worker)
            self.sent.append((worker, "drain", "", worker))
        return worker in self.workers

    def deregister(self, worker: str, instance: str) -> bool:
        if worker not in self.workers or self.workers[worker].about["instance"] != instance:
            return False
        if self.held(worker):  # a turn was left open: the rest is reaped like a dead worker's
            self.workers[worker].expiry, self.workers[worker].state = self.ms, "draining"
            return True
        del self.workers[worker]
        self.over.pop(f"held:{worker}", None)
        self.note("gone", worker, "drain")
        return True

    def claim(self, worker: str, lease: int, floor: int, copies: Sequence[Claim]) -> list[str]:
        if worker not in self.workers:
            raise Refused("UNKNOWNWORKER")
        grace = self.grace_left() > 0
        return [self._claim(worker, lease, floor, copy, grace) for copy in copies]

    def _claim(self, worker: str, lease: int, floor: int, mine: Claim, grace: bool) -> str:
        known = self.copies.get(mine.session)
        if known and (known.worker, known.generation) == (worker, mine.generation):
            return "keep"
        if self.closing.get(mine.session) == f"{worker} {mine.generation}":
            return "hard"
        if not grace or mine.state == "unsure" or mine.turn in self.ended:
            return "soft"
        if mine.session in self.closing:
            return "soft"
        key = "" if mine.key == mine.session else mine.key
        names = [name for name in (mine.session, key) if name and mine.turn]
        for name in names:
            self.lease_on(name)  # what has run out goes
        if self.gone.get(mine.session, 0) >= mine.fence:
            return "soft"
        rivals = [mine.session] if mine.session in self.copies else []  # whoever has a name that this turn needs
        for name in names:
            rivals += [s for s, c in self.copies.items() if c.lease and name in (s, c.lease.key)]
        if any(self.copies[rival].fence >= mine.fence for rival in rivals):
            return "soft"
        for rival in dict.fromkeys(rivals):  # of two claims the higher fence wins
            self.drop(rival, "soft", "lost" if self.copies[rival].lease else "moved")
        copy = Copy(worker, mine.signature, mine.generation, mine.fence, mine.state, tick=self.tick(floor))
        self.copies[mine.session] = copy
        if mine.turn:
            copy.lease = Lease(mine.turn, lease, self.ms, self.ms + lease, key)
        elif mine.stamped:
            copy.active = self.ms
        self.note("adopted", mine.session)
        return "keep"

    def disown(self, worker: str, copies: Sequence[tuple[str, int]]) -> int:
        dropped = 0
        for session, generation in copies:
            copy = self.copies.get(session)
            if copy and (copy.worker, copy.generation) == (worker, generation) and not self.left(copy):
                self.drop(session, "soft", "lost")
                dropped += 1
        return dropped

    def set_limits(self, limits: Limits | None) -> None:
        for name in ("room", "worker", "idle_ttl", "memory"):
            value = getattr(limits, name, None)
            value = int(value * 1000) if value and name == "idle_ttl" else value
            self.settings[name] = "none" if value is None else str(value)
            if limits is None:
                del self.settings[name]
        self.note("limits", "")

    # -- maintenance (rule 13) -----------------------------------------------------------------------------------

    def maintain(
        self, steps: str, limits: Limits, *, worker: str = "", paced: bool = False, turn_of_another: bool = False
    ) -> Maintenance:
        """A worker sees to its own cap at every beat; the rest is paced, and may be another worker's this second."""
        done = Maintenance()
        another = paced and turn_of_another
        if steps in ("all", "reap") and not another:
            done.lost, done.gone = self._reap_leases(), self._reap_workers(worker)
        if steps in ("all", "sweep") and not another:
            done.idle = self._sweep(self.limit("idle_ttl", limits.idle_ttl))
        if steps in ("all", "caps") and worker:
            done.capped, done.over = self.enforce(f"held:{worker}", self.limit("worker", limits.worker))
        if steps in ("all", "caps") and not another:
            capped, over = self.enforce("lru", self.limit("room", limits.room))
            done.capped, done.over = done.capped + capped, max(done.over, over)
        if steps == "all" and worker:
            done.endings = self._take_endings(worker, adopts=not another)
        return done

    def _reap_leases(self) -> int:
        before = self.counters["lost"]
        names = sorted(self.leases(), key=lambda name: (self.leases()[name], name))
        for name in [name for name in names if self.leases()[name] <= self.ms]:
            self.lease_on(name)
        for name in sorted(self.leases(), key=lambda name: (self.leases()[name], name))[: -FURTHEST - 1 : -1]:
            self.lease_on(name)
        return self.counters["lost"] - before

    def _reap_workers(self, caller: str) -> int:
        gone = 0
        for worker in self.workers.values():
            if worker.expiry - self.ms > worker.lease:  # written before the clock was set back: one length more
                worker.expiry = self.ms + worker.lease
        dead = [name for name, worker in self.workers.items() if worker.expiry <= self.ms and name != caller]
        for name in sorted(dead, key=lambda name: (self.workers[name].expiry, name)):
            for session in self.held(name):
                if not self.left(self.copies[session]):
                    self.drop(session, "soft", "dead")
            if not self.held(name):
                del self.workers[name]
                self.over.pop(f"held:{name}", None)
                self.note("gone", name, "dead")
                gone += 1
        return gone

    def _sweep(self, ttl: int | None) -> int:
        idle = [(c.active, s) for s, c in self.copies.items() if c.active is not None]
        swept = [] if ttl is None else [s for active, s in sorted(idle) if active < self.ms - ttl]
        for session in swept:
            self.drop(session, "soft", "idle")
        return len(swept)

    def _take_endings(self, worker: str, adopts: bool) -> list[tuple[str, int]]:
        """Hard closes that are this worker's, and those left to one that is gone: they fall to who `adopts`."""
        taken = []
        for session in self.closing:
            ending = self.ending(session, worker if adopts else "")
            if ending and ending[0] == worker:
                taken.append((session, ending[1]))
        return taken

    # -- what Redis must hold ------------------------------------------------------------------------------------

    def keyspace(self) -> dict[str, Any]:
        """Every key of the room without its prefix: strings and hashes as text, sorted sets as name → number."""
        live = {session: self.copies[session] for session in self.held()}
        keys: dict[str, Any] = {
            "lru": {session: copy.tick for session, copy in live.items()},
            "activity": {session: copy.active for session, copy in live.items() if copy.active is not None},
            "leases": self.leases(),
            "aliases": {c.lease.key: s for s, c in self.copies.items() if c.lease and c.lease.key},
            "signatures": dict(Counter(copy.signature for copy in live.values())),
            "turns": self.turns(),
            "building": self.building(),
            "workers": {name: worker.expiry for name, worker in self.workers.items()},
            "settings": self.settings,
            "counters": {name: str(count) for name, count in self.counters.items() if count},
            "over": {index: str(over) for index, over in self.over.items()},
            "closing": self.closing,
            "clock": str(self.clock) if self.clock else "",
            "epoch": self.epoch,
            "grace": "{} {}".format(*self.grace) if self.grace else "",
            "journal": self.journal,
        }
        for name, worker in self.workers.items():
            keys[f"worker:{name}"] = _text(worker.about | {"lease": worker.lease, "state": worker.state})
        for name in {copy.worker for copy in live.values()}:
            keys[f"held:{name}"] = {session: live[session].tick for session in self.held(name)}
        for session, copy in self.copies.items():
            keys[f"session:{session}"] = _record(copy)
        keys |= {f"waiting:{name}": queue for name, queue in self.queues.items()}
        keys |= {f"waiter:{turn}": worker for turn, worker in self.waiters.items()}
        keys |= {f"snapshot:{session}": _text(saved) for session, saved in self.snapshots.items()}
        keys |= {f"gone:{session}": str(fence) for session, fence in self.gone.items()}
        keys |= {f"answer:{name}": known for name, known in self.answers.items()}
        keys |= {f"ended:{turn}": answer for turn, answer in self.ended.items()}
        return {key: value for key, value in keys.items() if value}


def message_of(turn: str) -> str:
    """Of `<worker>/<number>/<delivery>/<message>`; '' where the turn is for none that may come twice."""
    return turn.split("/")[3] if turn.count("/") == 3 else ""


def _delivery(turn: str) -> str:
    return turn.split("/")[2] if turn.count("/") == 3 else ""


def _record(copy: Copy) -> dict[str, str]:
    fields = {name: getattr(copy, name) for name in ("worker", "signature", "generation", "state", "fence", "evict")}
    if copy.lease:
        fields |= {"turn": copy.lease.turn, "lease": copy.lease.length, "since": copy.lease.since}
        fields["key"] = copy.lease.key
    return {name: text for name, text in _text(fields).items() if text}


def _text(fields: dict[str, Any]) -> dict[str, str]:
    return {name: value.decode() if isinstance(value, bytes) else str(value) for name, value in fields.items()}
