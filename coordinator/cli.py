"""The command `greenroom`: what an operator asks a room, and tells it.

A command is a function that is given `subparsers` and adds its parser, with `run` a function from the parsed options
to an exit code (see `add_command`). The ones here need only a `Coordinator`; those that need workers are found in the
entry-point group `greenroom.commands`.

Exit codes: 0; 1 when Redis or the room says no; 2 for bad usage, a bad name or setting; 130 after Ctrl-C. Names of
sessions are other people's data: whatever is printed goes through `shown`, and never through rich's markup.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import entry_points
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table
from rich.text import Text

from coordinator import __version__
from coordinator.errors import GreenroomError, InvalidName
from coordinator.limits import Limits
from coordinator.room import Coordinator, Event
from coordinator.settings import Settings

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Run: TypeAlias = Callable[[argparse.Namespace], int]
Action: TypeAlias = Callable[[Coordinator, argparse.Namespace], int]

#: Where further commands register themselves.
GROUP = "greenroom.commands"
_CORE: list[Callable[[Subparsers], None]] = []


class BadUsage(Exception):
    """The command line or the environment asks for something that cannot be; the message is one line."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Whatever goes wrong is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that has no ● is no reason to fail
    options = parser().parse_args(argv)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
        return code
    except (BadUsage, InvalidName) as error:
        return fail(str(error), 2)
    except GreenroomError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `greenroom events | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:  # its text may hold anything
        return fail(f"unexpected {type(error).__name__}: does something else write to the room's keys?")


def fail(message: str, code: int = 1) -> int:
    print(f"greenroom: {shown(message)}", file=sys.stderr)
    return code


def parser() -> argparse.ArgumentParser:
    """The whole command line: the commands here, and those that other packages bring."""
    top = argparse.ArgumentParser(prog="greenroom", description="Look after a room of warm agents.")
    top.add_argument("--version", action="version", version=f"greenroom {__version__}")
    subparsers = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _CORE:
        command(subparsers)
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            entry.load()(subparsers)
        except Exception as error:  # somebody else's command must not take ours down
            fail(f"the command {entry.name!r} cannot be loaded ({type(error).__name__})")
    return top


def add_command(subparsers: Subparsers, name: str, run: Run, about: str) -> argparse.ArgumentParser:
    """A command with the options that all have: where Redis is, and `--json`."""
    command = subparsers.add_parser(name, help=about, description=about[:1].upper() + about[1:] + ".")
    command.set_defaults(run=run)
    command.add_argument("--redis", metavar="URL", help="where Redis is (default: $GREENROOM_REDIS_URL)")
    command.add_argument("--json", action="store_true", help="print JSON")
    return command


def core(name: str, about: str, **arguments: dict[str, Any]) -> Callable[[Action], Action]:
    """Make a command of a function that is given an open room. An argument `_name` is the option `--name`."""

    def register(act: Action) -> Action:
        def run(options: argparse.Namespace) -> int:
            with open_room(options) as room:
                return act(room, options)

        def command(subparsers: Subparsers) -> None:
            parser = add_command(subparsers, name, run, about)
            parser.add_argument("--room", metavar="NAME", help="which room (default: $GREENROOM_ROOM, else default)")
            for argument, how in arguments.items():
                parser.add_argument(argument.replace("_", "--"), **how)

        _CORE.append(command)
        return act

    return register


def open_room(options: argparse.Namespace) -> Coordinator:
    """The room that the options and the environment name. An operator is told early that Redis is away."""
    try:
        Settings.load(redis=options.redis, room=options.room)
    except ValueError as error:
        raise BadUsage(str(error)) from None
    try:
        patience = None if os.environ.get("GREENROOM_RETRY_FOR") else 1.0
        return Coordinator(options.redis, options.room, retry_for=patience)
    except ValueError:  # whatever it says may hold a part of the password
        raise BadUsage("the Redis URL cannot be read: redis://[[user]:password@]host[:port][/db]") from None


def _matching(pattern: str, rule: str, make: Callable[[str], Any] = str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{rule}, not {ascii(text)[:40]}")
        return make(text)

    return read


def _limits_of(words: Iterable[str]) -> Limits:
    kinds: dict[str, Callable[[str], Any]] = {"room": int, "worker": int, "idle_ttl": float, "memory": str}
    values: dict[str, Any] = {}
    for word in words:
        name, _, value = word.partition("=")
        if name not in kinds or not value:
            raise BadUsage(f"a limit is NAME=VALUE with one of {', '.join(kinds)}, not {ascii(word)[:40]}")
        try:
            values[name] = None if value == "none" else kinds[name](value)
            Limits(**{name: values[name]})
        except ValueError:
            wanted = {"idle_ttl": "seconds", "memory": "a size such as 4GiB"}.get(name, "a whole number")
            raise BadUsage(f"limit {name} must be {wanted}, or none; it cannot be {ascii(value)[:40]}") from None
    return Limits(**values)


_COUNT = _matching("[1-9][0-9]{0,8}", "a whole number above zero", int)
_ENTRY = _matching("-|[0-9]{1,18}(-[0-9]{1,18})?", "an entry of the journal such as 1794977952081-0")
_LIMIT: dict[str, Any] = {"type": _COUNT, "metavar": "N", "help": "at most so many"}
_NEWEST = _LIMIT | {"help": "the newest N (default: 20; with --since: all)"}
_SINCE = {"type": _ENTRY, "default": "-", "metavar": "ID", "help": "what came after this entry, or Unix time in ms"}
_HARD = {"action": "store_true", "help": "the session is over: close its agent, drop its snapshot"}
_CLEAR = {"action": "store_true", "help": "give every worker its own limits back"}
_EXAMPLE = "room=512 worker=128 idle_ttl=3600 memory=4GiB; none: no limit; what is not named stays"
_LIMITS = {"nargs": "*", "metavar": "NAME=VALUE", "help": _EXAMPLE}


OWN = "each worker's own apply"


@core("status", "show a room at a glance")
def status(room: Coordinator, options: argparse.Namespace) -> int:
    workers, sessions, counters, limits = room.workers(), room.sessions(), room.counters(), room.limits()
    kinds = ["dead" if worker.heartbeat_left <= 0 else worker.state for worker in workers]
    turns = counters.get("hits", 0) + counters.get("builds", 0)
    rate = counters.get("hits", 0) / turns if turns else None
    state: dict[str, Any] = {
        "room": room.settings.room,
        "redis": place(room.settings.redis),
        "workers": {kind: kinds.count(kind) for kind in ("up", "draining", "dead")},
        "sessions": {state: sum(one.state == state for one in sessions) for state in ("live", "building")}
        | {"mid_turn": sum(bool(one.turn) for one in sessions)},
        "limits": limits and asdict(limits),
        "hit_rate": rate,
        "counters": counters,
    }
    words = state | {"hit_rate": None if rate is None else f"{rate:.0%}", "limits": (limits and asdict(limits)) or OWN}
    return show(options, state, (), [(name, _words(value)) for name, value in words.items()])


@core("sessions", "list the sessions with an agent, the next victim first", _limit=_LIMIT)
def sessions(room: Coordinator, options: argparse.Namespace) -> int:
    found, rows = room.sessions(options.limit), []
    for one in found:
        doing = f"turn {span(one.running)}" if one.turn else f"idle {span(one.idle)}"
        rows.append((one.session, one.worker, one.state, doing, one.signature[:12], one.fence, one.evict))
    return show(options, found, ("session", "worker", "state", "doing", "signature", "fence", "to evict"), rows)


@core("workers", "list the workers of a room")
def workers(room: Coordinator, options: argparse.Namespace) -> int:
    found, rows = room.workers(), []
    for one in found:
        beat = "over" if one.heartbeat_left <= 0 else span(one.heartbeat_left)
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.started))
        rows.append((one.worker, one.state, one.held, beat, started, one.host, one.pid, one.address))
    return show(options, found, ("worker", "state", "held", "beat left", "started", "host", "pid", "address"), rows)


@core("events", "show the journal, oldest first", _since=_SINCE, _limit=_NEWEST)
def events(room: Coordinator, options: argparse.Namespace) -> int:
    found, since = deque[Event](maxlen=options.limit or (20 if options.since == "-" else None)), options.since
    while page := room.events(since):  # the journal is capped, and a page is much longer than what comes meanwhile
        found += page
        since = page[-1].id
    rows = []
    for one in found:
        about = {name: value for name, value in one.fields.items() if name != "session"}
        rows.append((one.id, clock(one.at), one.event, one.fields.get("session", ""), _words(about)))
    return show(options, list(found), ("id", "time", "event", "session", "about"), rows)


@core("evict", "evict a session's agent wherever it is", session={"metavar": "SESSION"}, _hard=_HARD)
def evict(room: Coordinator, options: argparse.Namespace) -> int:
    mode = "hard" if options.hard else "soft"
    found, nobody = room.evict(options.session, mode), f"nobody holds an agent for {options.session}"
    if not found and not options.hard:
        return fail(nobody)
    done = f"evicted {options.session} ({mode}); if a turn runs, at its end"
    line = done if found else f"{nobody}; a worker ends the session"
    return show(options, {"session": options.session, "mode": mode, "found": found}, (), [(line,)])


@core("sweep", "evict what has been idle for longer than the room's idle_ttl")
def sweep(room: Coordinator, options: argparse.Namespace) -> int:
    limits, idle = room.limits(), room.sweep()
    ttl = limits.idle_ttl if limits else None
    none = "the room sets no idle_ttl (see `greenroom limits`): each worker sweeps by its own"
    line = f"evicted {idle} that were idle for longer than {span(ttl)}" if ttl else none
    return show(options, {"idle": idle, "idle_ttl": ttl}, (), [(line,)])


@core("drain", "tell a worker to take no new sessions and let its agents go", worker={"metavar": "WORKER"})
def drain(room: Coordinator, options: argparse.Namespace) -> int:
    if not room.drain(options.worker):
        return fail(f"the room has no worker {options.worker}")
    return show(options, {"worker": options.worker, "state": "draining"}, (), [(f"{options.worker} drains",)])


@core("limits", "show or set the room's limits, which go before the workers' own", limit=_LIMITS, _clear=_CLEAR)
def limits(room: Coordinator, options: argparse.Namespace) -> int:
    if options.clear and options.limit:
        raise BadUsage("either --clear or limits to set, not both")
    if options.limit or options.clear:
        named = [word.split("=")[0] for word in options.limit]
        room.set_limits(_limits_of(options.limit) if options.limit else None, named or None)
    if (found := room.limits()) is None:
        return show(options, None, (), [(f"the room sets no limits: {OWN}",)])
    return show(options, found, (), [(name, _words(value)) for name, value in asdict(found).items()])


def show(options: argparse.Namespace, value: Any, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> int:
    """A value as JSON, if that is wanted, or its rows as columns. In a pipe nothing is folded."""
    if options.json:
        print(json.dumps(value, indent=2, default=asdict))
        return 0
    table = Table(*titles, box=None, show_header=bool(titles), pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(Text(shown(cell), overflow="fold") for cell in row))
    Console(highlight=False, width=None if sys.stdout.isatty() else 1000).print(table)
    return 0


def shown(text: object) -> str:
    """Text that is safe on a terminal: what cannot be printed is escaped, as Python would write it."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(text))


def place(source: Any) -> str:
    """Where a Redis URL points to, without its user and password."""
    url = urlsplit(source) if isinstance(source, str) else urlsplit("redis://client")
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def clock(at: float) -> str:
    """A Unix time as the time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at * 1000) % 1000:03d}"


def span(seconds: float | None) -> str:
    """A length of time for people."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds is not None and seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return "–" if seconds is None else f"{seconds:.1f} s"


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {_words(one)}" for name, one in value.items())
    return "none" if value is None else str(value)
