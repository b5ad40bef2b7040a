"""`greenroom demo`: three workers, sixty chats, twenty seconds, on an empty machine.

Starts a Redis of its own and worker processes, lets clients send messages to them, shows the room, and then checks
what the workers saw: nothing doubled, leaked, or released mid-turn. Where there is no redis-server it runs on
fakeredis, with threads in place of processes, and says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import secrets
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.live import Live

from coordinator.cli.command import Subparsers, add_command, room_of
from coordinator.cli.output import place
from coordinator.clients import sync_client
from coordinator.errors import CoordinatorUnavailable
from coordinator.keys import Keys
from coordinator.limits import Limits
from coordinator.private_redis import NoRedisServer, PrivateRedis
from coordinator.room import Coordinator, Event
from workers.rehearsal.crew import Member, Plan
from workers.rehearsal.verdict import History, Trouble, check, load, summary
from workers.rehearsal.view import Frame, Shelf, line, render, render_summary

#: Short, so that a killed worker's sessions are free again while one watches.
LEASE = 6.0
#: How long workers may take to join, and to leave.
JOIN, LEAVE = 20.0, 25.0
#: Seconds between two frames, and between two looks at the journal: it would flicker.
FRAME, JOURNAL = 0.25, 1.0


def command(subparsers: Subparsers) -> None:
    """Register `greenroom demo`."""
    parser = add_command(subparsers, "demo", main, "watch three workers share sixty chats for twenty seconds")
    parser.add_argument("--seconds", type=_between(1, 3600), default=20, metavar="N", help="for how long (20)")
    parser.add_argument("--workers", type=_between(1, 16), default=3, metavar="N", help="how many workers (3)")
    parser.add_argument("--sessions", type=_between(1, 10_000), default=60, metavar="N", help="how many chats (60)")
    parser.add_argument("--seed", type=int, metavar="N", help="of the random choices; timing still differs")


def main(options: argparse.Namespace) -> int:
    """Run the demo. 0: every check passed; 1: one did not."""
    with contextlib.ExitStack() as stack:
        # Also Ctrl-C: who was started in the background of a shell inherits a SIGINT that is ignored.
        stack.enter_context(_handling(_interrupt, signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        source, where, threads = _redis(options.redis or os.environ.get("GREENROOM_REDIS_URL"), stack)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="greenroom-demo-")))
        demo = Demo(options, source, where, threads, folder)
        stack.callback(demo.forget)
        return demo.run()


class Demo:
    """One run: the workers, the view and the verdict."""

    def __init__(self, options: argparse.Namespace, source: Any, where: str, threads: bool, folder: Path) -> None:
        self._options, self._source, self._threads, self._folder = options, source, threads, folder
        self._where = where
        self._seed = random.randrange(1 << 32) if options.seed is None else options.seed
        self._room = f"demo-{secrets.token_hex(4)}"
        self._names = tuple(f"worker-{n}" for n in range(1, options.workers + 1))
        self._limits = Limits(
            room=max(2, math.ceil(options.sessions * 0.75)),
            worker=max(1, math.ceil(options.sessions * 0.8 / options.workers)),
            idle_ttl=min(0.9, max(0.4, options.seconds / 12)),
        )
        kind = "worker threads" if threads else "worker processes"
        self._title = f"Greenroom demo: {options.sessions} chats on {options.workers} {kind}, {where}"
        self._console = Console(highlight=False, quiet=options.json)
        if not self._console.is_terminal:
            self._console.width = 118
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal and not options.json
        self._crew = [Member(self._plan(index), threads) for index in range(options.workers)]
        self._joined: list[Member] = []
        self._starts = self._ends = self._ran = 0.0

    def run(self) -> int:
        with room_of(argparse.Namespace(redis=self._source, room=self._room)) as room:
            room.counters()  # is Redis there at all?
            interrupted = False
            try:
                with self._saying("the workers join …"):
                    self._start()
                self._watch(room)
            except KeyboardInterrupt:
                interrupted = True
            finally:
                with self._saying("the workers end their turns, release their agents and leave …"):
                    codes = self._stop()
            history = self._history(room, codes)
        numbers, checks = summary(history), check(history)
        if interrupted and not numbers["turns"]:
            raise KeyboardInterrupt
        ok = all(one.ok for one in checks)
        if self._options.json:
            verdicts = [{"name": c.name, "promise": c.promise, "ok": c.ok, "problems": c.problems[:20]} for c in checks]
            about = {
                "redis": self._where,
                "workers": len(self._names),
                "kind": "threads" if self._threads else "processes",
            }
            about |= {"sessions": self._options.sessions, "seconds": round(self._ran, 3), "seed": self._seed}
            print(json.dumps({"ok": ok, "interrupted": interrupted} | about | numbers | {"checks": verdicts}, indent=2))
        else:
            self._console.print(render_summary(self._title, numbers, self._ran, checks))
        return 0 if ok else 1

    def forget(self) -> None:
        """Take the demo's room out of a Redis that is not ours."""
        if not isinstance(self._source, str):
            return
        with contextlib.suppress(Exception), sync_client(self._source, timeout=2.0, connections=2) as client:
            prefix = Keys(self._room).prefix.replace("[", "\\[")
            for key in client.scan_iter(match=f"{prefix}*", count=500):
                client.unlink(key)

    def _plan(self, index: int) -> Plan:
        chats = tuple(f"{('telegram', 'discord', 'web')[n % 3]}:{4100 + n}" for n in range(self._options.sessions))
        file = self._folder / f"{self._names[index]}.jsonl"
        return Plan(self._source, self._room, self._names, index, chats, self._limits, LEASE, self._seed, file)

    def _start(self) -> None:
        """Let everybody join, then start the clock for all at once."""
        with _putting_off(signal.SIGINT):
            for member in self._crew:
                member.start()
        deadline = time.monotonic() + JOIN
        self._joined = [member for member in self._crew if member.joined(deadline)]
        self._starts = time.monotonic() + 0.05
        self._ends = self._starts + self._options.seconds
        for member in self._joined:
            member.send((self._starts, self._ends))

    def _saying(self, what: str) -> contextlib.AbstractContextManager[Any]:
        return self._console.status(what, spinner_style="green") if self._live else contextlib.nullcontext()

    def _stop(self) -> dict[str, str]:
        """End the workers, those that hang too; what there is to say about each."""
        if self._starts:
            self._ran = max(0.0, min(time.monotonic(), self._ends) - self._starts)
        try:
            for member in self._crew:
                member.stop()
            deadline = time.monotonic() + LEAVE
            return {member.plan.worker: member.end(deadline) for member in self._crew}
        except BaseException:
            for member in self._crew:
                member.kill()
            raise

    def _history(self, room: Coordinator, said: dict[str, str]) -> History:
        history = History(self._names, LEASE, counters=room.counters())
        history.left_behind = [one.session for one in room.sessions()] + [one.worker for one in room.workers()]
        for member in self._crew:
            worker, file = member.plan.worker, member.plan.history
            lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else []
            history.records += load(lines, worker)
            if said[worker]:
                history.records.append(Trouble(worker, said[worker]))
        return history

    def _watch(self, room: Coordinator) -> None:
        """Show the room until the time is over, or nobody is left."""
        frames, view = _Frames(self._title, room, self._options.seconds, self._limits), None
        every = FRAME if self._live else max(1.0, self._options.seconds / 5)
        with contextlib.ExitStack() as stack:
            if self._live:
                view = stack.enter_context(Live(console=self._console, auto_refresh=False, transient=True))
            elif not self._options.json:
                self._console.print(self._title)
            due = self._starts
            while (now := time.monotonic()) < self._ends and any(member.alive() for member in self._joined):
                if now >= due and not self._options.json:
                    frame = frames.next(now - self._starts)
                    if view:
                        view.update(render(frame, self._console.width, self._console.height), refresh=True)
                    elif now > self._starts + every / 2:
                        self._console.print(line(frame))
                    due = max(due + every, now)
                time.sleep(max(0.0, min(0.25, due - now, self._ends - now)) or 0.05)


class _Frames:
    """Looks at the room, and remembers enough for rates and the journal."""

    def __init__(self, title: str, room: Coordinator, seconds: float, limits: Limits) -> None:
        self._title, self._room, self._seconds, self._limits = title, room, seconds, limits
        self._turns: deque[tuple[float, int]] = deque(maxlen=8)
        self._events: deque[Event] = deque(maxlen=10)
        self._since, self._due = "-", 0.0

    def next(self, elapsed: float) -> Frame:
        sessions, workers, counters = self._room.sessions(), self._room.workers(), self._room.counters()
        if elapsed >= self._due:
            self._due = elapsed + JOURNAL
            while page := self._room.events(self._since):
                self._events += page
                self._since = page[-1].id
        turns = counters.get("hits", 0) + counters.get("builds", 0)
        self._turns.append((elapsed, turns))
        since, before = self._turns[0]
        span = elapsed - since
        shelves = [
            Shelf(one.worker, one.state, one.held, sum(bool(s.turn) and s.worker == one.worker for s in sessions))
            for one in sorted(workers, key=lambda one: one.worker)
        ]
        return Frame(
            self._title, elapsed, self._seconds, self._limits.worker or 0, self._limits.room or 0, shelves,
            held=sum(one.state == "live" for one in sessions), rate=(turns - before) / span if span else 0.0,
            counters=counters, events=tuple(self._events),
        )  # fmt: skip


def _redis(url: str | None, stack: contextlib.ExitStack) -> tuple[Any, str, bool]:
    """What the workers connect to, how it is called, and whether they must be threads."""
    if url:
        return url, place(url), False
    try:
        server = stack.enter_context(PrivateRedis())
        with sync_client(server.url, timeout=5.0, connections=1) as client:
            return server.url, f"a private Redis {client.info('server')['redis_version']}", False
    except (NoRedisServer, OSError):
        pass
    try:
        import fakeredis
    except ImportError:
        hint = "install redis-server, `pip install 'greenroom[embedded]'`, or name one with --redis"
        raise CoordinatorUnavailable(f"there is no redis-server here, and no fakeredis: {hint}") from None
    client = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    client.ping()  # two threads that come first at the same time would each get a database of their own
    return client, "fakeredis (no redis-server was found)", True


@contextlib.contextmanager
def _handling(handler: Any, *signals: int) -> Iterator[None]:
    """Signals handled in another way for a while. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def _putting_off(number: int) -> Iterator[None]:
    """Processes that are started meanwhile have the signal blocked; here it is noticed, and comes afterwards."""
    came: list[int] = []
    with _handling(lambda number, frame: came.append(number), number):
        resource_tracker.ensure_running()  # lets go of the signal when it starts: so it starts before
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if came:
        signal.raise_signal(number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _between(least: int, most: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,9}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"a whole number from {least} to {most}, not {ascii(text)[:40]}")
        return int(text)

    return number
