"""What the operations of a room answer, as plain data; and a copy as its worker shows it, to be asked about."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Granted:
    """The turn has its lease. `generation` is the copy to use; a new one has the turn's own fence."""

    fence: int
    generation: int
    fresh: bool
    snapshot: bytes = b""


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody is in the way. `why`: a 'turn'; 'repeat', a turn for the same message; 'full', a turn, and no place in
    line; the 'queue' or the 'grace' after a loss of state (no worker); or 'closing': that worker has to end the
    session's last life first."""

    why: str
    worker: str
    left: float
    running: float
    ahead: int = 0  #: how many wait before
    number: int = 0  #: fence of the turn, or generation of the life that has to be ended


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Another worker holds or builds the agent."""

    worker: str
    address: str
    instance: str  #: which start of that worker it is
    at: int  #: when Redis said so, ms


@dataclass(frozen=True, slots=True)
class Answered:
    """The turn's message was answered before."""

    answer: str


@dataclass(frozen=True, slots=True)
class Died:
    """This delivery of the turn's message had a turn that is over without an answer, or is too old to have one."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The turn's end was accepted. `mode` says how to release the copy, '' to keep it."""

    mode: str = ""
    reason: str = ""
    over: int = 0  #: how far over a cap the room stays because of turns, if that is news
    more: bool = False  #: more is above a cap than one call looks at: go on with `maintain`


@dataclass(frozen=True, slots=True)
class Evicted:
    """What an eviction met: 'evicted' or 'marked' with the copy, 'absent', or 'ending'; see evict.lua."""

    kind: str
    worker: str = ""
    generation: int = 0

    @property
    def found(self) -> bool:
        return self.kind in ("evicted", "marked")


@dataclass(frozen=True, slots=True)
class Claim:
    """A copy, or a turn that builds one, as its worker knows it."""

    session: str
    generation: int
    signature: str
    state: str
    turn: str
    fence: int
    key: str
    stamped: bool  #: idle time counts: the agent keeps an activity timestamp


@dataclass(slots=True)
class Maintenance:
    """What a round of maintenance did."""

    lost: int = 0
    gone: int = 0
    idle: int = 0
    capped: int = 0
    over: int = 0
    endings: list[tuple[str, int]] = field(default_factory=list)
