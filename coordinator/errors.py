"""What can go wrong, in one tree, and the one place where Redis's error codes become exceptions.

GreenroomError
├── InvalidName             a room, session, worker … name that is not allowed (also a ValueError)
├── SessionBusy             another turn holds the session, and waiting for it was not wanted or took too long
├── SessionElsewhere        another worker holds the warm agent, and affinity was asked for
├── MessageAnswered         the turn's message was delivered before, and has its answer
├── LeaseLost               the turn's claim ran out: whatever it did is not accepted any more
├── WorkerDraining          this worker takes no new sessions
├── WorkerExists            another live worker has this id
├── AlreadyStarted          `start` was called twice (also a RuntimeError)
├── WorkerNotRunning        this worker is not started, has left, or belongs to another process (also a RuntimeError)
├── BuildFailed             the builder raised; its exception is the cause
├── SchemaMismatch          the room belongs to another version of Greenroom
└── CoordinatorUnavailable  Redis cannot be reached, or refuses its service
    └── UnknownWorker       Redis does not know this worker (any more): it joins again and retries
"""

from __future__ import annotations

from redis import exceptions as redis_errors


class GreenroomError(Exception):
    """Base of everything Greenroom raises on purpose."""


class InvalidName(GreenroomError, ValueError):
    """A name that is not allowed; the message says what is."""


class SessionBusy(GreenroomError):
    """Another turn holds the session, or its last life has to be ended first.

    `why` is turn, repeat (that turn is for the same message), full, queue, closing, grace or itself; `ahead` says how
    many wait in line before this one; `fence` is that of the turn that runs, if one does.
    """

    def __init__(
        self, session: str, worker: str = "", left: float = 0.0, running: float = 0.0, ahead: int = 0, why: str = "",
        fence: int = 0,
    ) -> None:  # fmt: skip
        self.session, self.worker, self.left, self.running = session, worker, left, running
        self.ahead, self.why, self.fence = ahead, why or ("turn" if worker else "queue"), fence
        who = {
            "turn": f"a turn on {worker}, running for {running:.1f} s",
            "repeat": f"the same message has a turn on {worker}, running for {running:.1f} s",
            "full": "there is no place in line any more",
            "queue": "others waiting in line",
            "closing": f"it was reset, and {worker or 'a worker'} ends its last life first",
            "grace": "Redis lost its state, and whoever holds the session may still say so",
            "itself": "this thread or task is already in its turn, and would wait for itself",
        }[self.why]
        super().__init__(f"session {session!r} is busy: {who}" + (f"; {ahead} ahead" if ahead else ""))


class SessionElsewhere(GreenroomError):
    """Another worker that is up holds or builds the session's agent, or has more room for it.

    `delivery` is what the turn there and, if nothing is heard of that, the next one here are given, so that only one of
    them runs. It is good for a minute. `instance` is known to that worker, and to whoever may talk to Redis.
    """

    def __init__(self, worker: str, address: str, delivery: str = "", instance: str = "") -> None:
        self.worker, self.address, self.delivery, self.instance = worker, address, delivery, instance
        super().__init__(f"the agent is warm on {worker}" + (f" at {address}" if address else ""))


class MessageAnswered(GreenroomError):
    """The turn's message was delivered before, and has this answer ('' if that was too long to be kept)."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        super().__init__("the message was answered before")


class LeaseLost(GreenroomError):
    """The turn's lease ran out or was given away; its agent is discarded, and its end is refused."""


class WorkerDraining(GreenroomError):
    """This worker is draining: it begins no turn on a session it does not hold."""


class WorkerExists(GreenroomError):
    """Another worker with this id is alive, or has taken this one's place."""

    def __init__(self, worker: str = "", host: str = "", pid: str = "", expiry: str = "", left: float = 0.0) -> None:
        self.worker, self.host, self.pid, self.expiry, self.left = worker, host, pid, expiry, left
        where = f": process {pid} on {host}" if pid else ""
        super().__init__(f"another worker with {f'the id {worker!r}' if worker else 'this id'} is in the room{where}")


class AlreadyStarted(GreenroomError, RuntimeError):
    """A worker is started once."""


class WorkerNotRunning(GreenroomError, RuntimeError):
    """This worker is not started yet, or has left the room, or was started by the process this one is a fork of."""


class BuildFailed(GreenroomError):
    """The builder raised. Its exception is the cause; no lease and no record are left."""


class SchemaMismatch(GreenroomError):
    """The room was set up by another version, with another layout of its keys."""


class CoordinatorUnavailable(GreenroomError):
    """Redis cannot be reached, or refuses its service. Never said of a session that is only busy."""


class UnknownWorker(CoordinatorUnavailable):
    """Redis does not know the worker that asks."""


#: Codes of the scripts' own errors.
_CODES: dict[str, tuple[type[GreenroomError], str]] = {
    "LOST": (LeaseLost, "the turn is not current any more: its lease ran out or was given away"),
    "ENDED": (LeaseLost, "the turn is over: its id was ended or abandoned before"),
    "DRAINING": (WorkerDraining, "this worker is draining and takes no new sessions"),
    "UNKNOWNWORKER": (UnknownWorker, "Redis does not know this worker: it has to join the room again"),
    "TAKEN": (WorkerExists, ""),
    "SCHEMA": (SchemaMismatch, "the room belongs to another version of Greenroom: use another room, or one version"),
}
#: redis-py takes the code off the text of errors that it has a class for.
_STRIPPED: dict[type[Exception], str] = {
    redis_errors.ReadOnlyError: "READONLY",
    redis_errors.TryAgainError: "TRYAGAIN",
    redis_errors.ClusterDownError: "CLUSTERDOWN",
    redis_errors.MasterDownError: "MASTERDOWN",
}
#: Answers of a Redis that will serve again soon.
_PASSING = ("BUSY", "LOADING", "READONLY", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "MISCONF", "NOREPLICAS")


def is_passing(error: Exception) -> bool:
    """Whether the same call may succeed in a moment: the connection broke, or Redis asked for patience."""
    if isinstance(error, (redis_errors.AuthenticationError, redis_errors.AuthorizationError)):
        return False
    if isinstance(error, (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError)):
        return True
    return isinstance(error, redis_errors.ResponseError) and _code(error) in _PASSING


def translate(error: Exception, place: str = "") -> GreenroomError:
    """The exception a caller sees for what redis-py raised. Carries codes and where Redis is, never data."""
    code = _code(error)
    if code in _CODES:
        kind, text = _CODES[code]
        return kind(text)
    if isinstance(error, redis_errors.OutOfMemoryError) or code == "OOM":
        return CoordinatorUnavailable("Redis is out of memory: raise maxmemory or lower the room's limits")
    if isinstance(error, (redis_errors.AuthenticationError, redis_errors.NoPermissionError)):
        return CoordinatorUnavailable("Redis refuses this user: check the password and the ACL rights")
    if isinstance(error, redis_errors.ResponseError):
        return CoordinatorUnavailable(f"Redis refused a script ({code or 'ERR'})")
    at = f" at {place}" if place else ""
    return CoordinatorUnavailable(f"Redis cannot be reached{at} ({type(error).__name__})")


def _code(error: Exception) -> str:
    for kind, code in _STRIPPED.items():
        if isinstance(error, kind):
            return code
    word = str(error).split(" ", 1)[0]
    return word if word.isupper() and word.isalpha() else ""
