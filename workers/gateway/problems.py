"""What a replica answers when it does not give a turn: problems as in RFC 9457, in one table."""

from __future__ import annotations

import math
from typing import Any

from coordinator.errors import (
    BuildFailed,
    CoordinatorUnavailable,
    InvalidName,
    LeaseLost,
    SessionBusy,
    SessionElsewhere,
    WorkerDraining,
    WorkerNotRunning,
)

#: Every kind of problem: its status, and what it means.
KINDS: dict[str, tuple[int, str]] = {
    "invalid-request": (400, "The request's name, body or a header is not what it has to be"),
    "forbidden": (403, "Only another replica may say this, and it has to know the secret between them"),
    "not-found": (404, "There is nothing at this address"),
    "method-not-allowed": (405, "This address does not know the method"),
    "too-slow": (408, "The request's body did not arrive in time"),
    "busy": (409, "Another turn holds the session"),
    "answered": (409, "The message was answered before, and that answer was too long to be kept"),
    "key-reused": (409, "The Idempotency-Key was used for another message"),
    "interrupted": (409, "The turn was asked to stop before it had an answer"),
    "too-large": (413, "The request's body is over the limit"),
    "unsupported-media-type": (415, "The body has to be JSON"),
    "misdirected": (421, "A message that another replica passed on, and that is not at home here"),
    "line-full": (429, "As many messages wait for the session as may"),
    "agent-failed": (500, "The agent raised an error"),
    "build-failed": (500, "The agent could not be built"),
    "internal": (500, "Something went wrong in the gateway"),
    "draining": (503, "This replica is about to go and takes no new sessions"),
    "unavailable": (503, "Redis cannot be reached, or, at an entry, no replica"),
    "turn-lost": (503, "The turn lost its claim on the session, and its effects are not accepted"),
}


class Problem(Exception):
    """One answer that is no turn. `more` stands beside the standard members."""

    STANDARD = ("type", "title", "status", "detail", "code", "retry_after")

    def __init__(self, kind: str, detail: str, *, retry_after: float = 0.0, **more: Any) -> None:
        self.kind, self.detail, self.more = kind, detail, more
        self.status, self.title = KINDS[kind]
        self.retry_after = math.ceil(retry_after)
        super().__init__(f"{kind}: {detail}")

    def body(self) -> dict[str, Any]:
        values = (f"/docs#{self.kind}", self.title, self.status, self.detail, self.kind, self.retry_after)
        return {name: value for name, value in zip(self.STANDARD, values, strict=True) if value != 0} | self.more

    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.retry_after)} if self.retry_after else {}


class AgentFailed(Exception):
    """The agent's `run` raised. Its exception is the cause; of that, only the type may be told."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(f"the agent raised {type(cause).__name__}")


class ReplyTooLong(Exception):
    """The agent said more than a reply may have."""


class Interrupted(Exception):
    """The turn was asked to stop, and its agent cannot stop by itself."""


def problem_of(error: BaseException) -> Problem:
    """What a client is told about an error. Never its text, unless it is one of ours: it may hold anything."""
    match error:
        case Problem():
            return error
        case SessionBusy():
            more = {"why": error.why, "holder": error.worker, "running": round(error.running, 3), "ahead": error.ahead}
            if error.why == "full":
                return Problem("line-full", str(error), retry_after=min(60, max(1, error.ahead)), **more)
            return Problem("busy", str(error), retry_after=1, **more)
        case SessionElsewhere():
            return Problem("misdirected", str(error))
        case InvalidName():
            return Problem("invalid-request", str(error))
        case Interrupted():
            return Problem("interrupted", "another message, or its own client's leaving, stopped the turn")
        case AgentFailed():
            return Problem("agent-failed", str(error))
        case BuildFailed():
            return Problem("build-failed", str(error))
        case LeaseLost():
            return Problem("turn-lost", str(error), retry_after=1)
        case WorkerDraining() | WorkerNotRunning():
            return Problem("draining", "this replica is about to go; ask another one", retry_after=1)
        case CoordinatorUnavailable():
            return Problem("unavailable", str(error), retry_after=1)
    return Problem("internal", f"unexpected {type(error).__name__}")
