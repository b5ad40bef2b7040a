"""Agents as a chat gateway has them, and a cast that builds them, writes down what becomes of each, and can hold it up.

A record outlives its agent and never refers to it: whoever wants to know whether an agent was really let go can tell.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from workers import Lifecycle
from workers.turns import BuildRequest

#: A gate that nobody opens gives way by itself: a test that failed must still end.
patience = 30.0


class Client:
    """The pool of connections to an LLM provider."""

    def __init__(self) -> None:
        self.closed = False

    def complete(self, prompt: SystemPrompt, message: str) -> str:
        assert not self.closed, "the client of this agent is closed"
        return f"{prompt.text}: {message}"

    def close(self) -> None:
        assert not self.closed, "the client is closed twice"
        self.closed = True


@dataclass(frozen=True, slots=True, eq=False)
class SystemPrompt:
    """Frozen when the agent is built: the provider's prompt cache hangs on it."""

    text: str


class History(list[str]):
    """The messages of a conversation; a class of its own so that tests can refer to it weakly."""


@dataclass(slots=True)
class Record:
    """What became of one agent. Plain data: it travels between processes."""

    serial: int
    session: str
    model: str
    fence: int
    calls: list[str] = field(default_factory=list)  #: as they began: keep, release, close …
    released: int = 0
    closed: int = 0
    client_closed: bool = False
    in_use: int = 0
    violations: list[str] = field(default_factory=list)
    threads: list[str] = field(default_factory=list)  #: on which it was released or closed

    @property
    def gone(self) -> int:
        return self.released + self.closed


class TaskState:
    """What belongs to a session id and outlives its agents: terminal sandbox, browser, background processes."""

    def __init__(self) -> None:
        self.terminal_open = True
        self.browser_open = True
        self.processes: list[subprocess.Popen[bytes]] = []

    def start_process(self) -> subprocess.Popen[bytes]:
        """A real child process, as a `npm run dev` that the agent left running."""
        process = subprocess.Popen(["sleep", "600"])
        self.processes.append(process)
        return process

    def tear_down(self) -> None:
        self.terminal_open = self.browser_open = False
        for process in self.processes:
            process.kill()
            process.wait()


class Backstage:
    """Task states by session id, for all agents of one machine."""

    def __init__(self) -> None:
        self._states: dict[str, TaskState] = {}
        self._gone: list[TaskState] = []

    def of(self, session: str) -> TaskState:
        return self._states.setdefault(session, TaskState())

    def end(self, session: str) -> None:
        if state := self._states.pop(session, None):
            state.tear_down()

    def close(self) -> None:
        for session in list(self._states):
            self.end(session)


class Agent:
    """One heavy, stateful object that serves one session. Checks that nobody lets go of it while it is in use."""

    def __init__(self, cast: Cast, record: Record, config: dict[str, Any], snapshot: Any) -> None:
        self._cast, self.record = cast, record
        self.session, self.model = record.session, record.model
        self.client: Client | None = Client()
        self.system_prompt = SystemPrompt(f"You are {record.model} and serve {record.session}")
        self.history = History(snapshot["history"] if snapshot else ())
        self.tasks = cast.backstage.of(record.session)
        self.reasoning_config: dict[str, Any] | None = None
        self.step_callback: Any = None
        self.stop_requested = threading.Event()
        self._last_activity_ts: float | None = time.time() if config.get("stamped", True) else None

    @contextmanager
    def use(self) -> Iterator[None]:
        """While this lasts nobody may release or close the agent."""
        self.record.in_use += 1
        try:
            yield
        finally:
            self.record.in_use -= 1

    def run(self, message: str) -> str:
        """Answer a message."""
        assert self.client is not None, "the agent was released"
        reply = self.client.complete(self.system_prompt, message)
        self.history.append(message)
        if self.step_callback is not None:
            self.step_callback(message)
        if self._last_activity_ts is not None:
            self._last_activity_ts = time.time()
        return reply

    def snapshot(self) -> dict[str, Any]:
        return {"history": list(self.history)}

    def interrupt(self) -> None:
        self.record.calls.append("interrupt")
        self.stop_requested.set()

    def commit_memory_session(self) -> None:
        self._goes("keep")

    def shutdown_memory_provider(self) -> None:
        self._goes("shutdown_memory_provider")

    def release_clients(self) -> None:
        """Softly: the client goes, the task state stays."""
        self._goes("release")
        self._cast.pass_gate(f"release:{self.session}")
        self._close_client()
        self.record.released += 1

    def close(self) -> None:
        """Hard: everything that belongs to the session goes."""
        self._goes("close")
        self._cast.pass_gate(f"close:{self.session}")
        self._close_client()
        self._cast.backstage.end(self.session)
        self.record.closed += 1

    def _goes(self, call: str) -> None:
        self.record.calls.append(call)
        self.record.threads.append(threading.current_thread().name)
        if self.record.in_use:
            self.record.violations.append(f"{call} while in use")

    def _close_client(self) -> None:
        if self.record.in_use:
            self.record.violations.append("client closed while in use")
        if self.client is None:
            self.record.violations.append("let go of twice")
            return
        self.client.close()
        self.record.client_closed = True
        self.client = None


class Cast:
    """Builds the agents of one worker and keeps their records."""

    def __init__(self, backstage: Backstage | None = None) -> None:
        self.backstage = backstage or Backstage()
        self.records: list[Record] = []
        self.ended: list[str] = []  #: sessions whose end-of-session hook ran
        self._gates: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def build(self, request: BuildRequest) -> Agent:
        """What a Worker gets as its builder."""
        self.pass_gate(f"build:{request.session}")
        return self.make(request)

    def make(self, request: BuildRequest) -> Agent:
        config = dict(request.config) if isinstance(request.config, dict) else {}
        if config.get("broken"):
            raise ConnectionError("the provider does not answer")
        with self._lock:
            record = Record(len(self.records), request.session, str(config.get("model", "")), request.fence)
            self.records.append(record)
        return Agent(self, record, config, request.snapshot)

    def shut(self, gate: str) -> None:
        """Hold up whoever passes `build:<session>`, `release:<session>`, `close:<session>` or `end:<session>`."""
        self._gates[gate] = threading.Event()

    def open(self, gate: str) -> None:
        if event := self._gates.pop(gate, None):
            event.set()

    def open_all(self) -> None:
        for gate in list(self._gates):
            self.open(gate)

    def pass_gate(self, gate: str) -> None:
        if event := self._gates.get(gate):
            event.wait(patience)


class CastLifecycle(Lifecycle):
    """The product's own ways, and a note of every session that was ended without an agent."""

    def __init__(self, cast: Cast) -> None:
        self._cast = cast

    def end_session(self, session: str) -> None:
        self._cast.ended.append(session)
        self._cast.pass_gate(f"end:{session}")
        self._cast.backstage.end(session)
